"""Sessions in the commands."""

import asyncio
from pathlib import Path

from crawlcw.api.request import Request
from crawlcw.ledger_opening import open_ledger
from crawlcw.model.identities import Identity
from tests.support.commands import invoke


def test_sessions_are_forgotten_by_reset(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/ledger.db"

    async def add() -> None:
        ledger = await open_ledger(url, "members")
        await ledger.tasks.add([Request("http://a.example/").task(now=ledger.now())])
        await ledger.sessions.change(None, Identity(name="ada"))
        await ledger.close()

    asyncio.run(add())

    refused = invoke("reset", "members", "--sessions", "--all", "--yes", "--ledger", url)
    done = invoke("reset", "members", "--sessions", "--yes", "--ledger", url)
    again = invoke("reset", "members", "--sessions", "--yes", "--ledger", url)

    assert (refused.returncode, "give it alone" in refused.stderr) == (2, True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 session forgotten\n", "")
    assert again.stdout == "0 sessions forgotten\n"
