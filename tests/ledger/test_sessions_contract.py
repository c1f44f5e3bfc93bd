"""Contract of `Ledger.sessions`, run on every store."""

from dataclasses import replace
from datetime import timedelta

from crawlcw.ledger.protocol import Ledger, Worker
from crawlcw.ledger.sessions import SessionChanges
from crawlcw.model import identities
from crawlcw.model.identities import Cookie, Identity, IdentityState
from tests.support.ledgers import LEASE, START, FakeClock, LedgerFactory, sessions_in

ADA = Identity(name="ada", fence=1)


def cookie(value: str, **changes: object) -> Cookie:
    plain = Cookie(
        name="sid",
        value=value,
        domain="a.example",
        host_only=True,
        path="/",
        port=0,
        secure=False,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # by name


def ready(**cookies: Cookie) -> Identity:
    return replace(identities.logged_in(ADA, cookies=cookies), fence=1)


async def test_a_session_is_read_as_it_was_written(ledger: Ledger):
    written = Identity(
        name="ada",
        state=IdentityState.READY,
        fence=7,
        cookies={"c0": cookie("1", expires=START, path="/in", secure=True, port=8080)},
        headers=(("X-Token", "t"),),
        origins=("https://a.example",),
        proxy="p1",
        data={"user": "ada", "$set": {"a.b": [1, None]}, "until": START.replace(tzinfo=None)},
        score=3,
        login_probe="https://a.example/in/1",
        owner="w",
        expires=START + LEASE,
        failures=2,
        not_before=START,
        given_up=START,
        reason="HTTP 401",
    )

    assert await ledger.sessions.change(None, written)

    assert await ledger.sessions.get("ada") == written
    assert await ledger.sessions.get("Ada") is None
    assert await sessions_in(ledger) == [written]


async def test_only_one_of_two_processes_adds_a_session(ledger: Ledger):
    assert await ledger.sessions.change(None, replace(ADA, owner="one"))

    assert not await ledger.sessions.change(None, replace(ADA, owner="two"))

    known = await ledger.sessions.get("ada")
    assert known is not None
    assert known.owner == "one"


async def test_a_change_is_written_where_the_fence_is_as_it_was(ledger: Ledger):
    await ledger.sessions.change(None, ADA)
    mine = identities.login_begun(ADA, owner="one", now=START, lease=LEASE)
    late = identities.login_begun(ADA, owner="two", now=START, lease=LEASE)

    assert await ledger.sessions.change(ADA, mine)
    assert not await ledger.sessions.change(ADA, late)
    # The first answer was lost.
    assert await ledger.sessions.change(ADA, mine)

    assert await ledger.sessions.get("ada") == mine


async def test_cookies_of_two_processes_are_kept_beside_each_other(ledger: Ledger):
    await ledger.sessions.change(None, ready(a=cookie("1"), b=cookie("1")))

    assert await ledger.sessions.keep("ada", 1, SessionChanges(cookies={"a": cookie("2")}, score=2))
    left = SessionChanges(
        cookies={"b": None, "c": cookie("3")}, score=1, login_probe="https://a.example/"
    )
    assert await ledger.sessions.keep("ada", 1, left)

    known = await ledger.sessions.get("ada")
    assert known is not None
    assert known.cookies == {"a": cookie("2"), "c": cookie("3")}
    assert (known.score, known.login_probe, known.fence) == (3, "https://a.example/", 1)


async def test_cookies_of_an_earlier_login_are_not_kept(ledger: Ledger):
    await ledger.sessions.change(None, ready())

    assert not await ledger.sessions.keep("ada", 0, SessionChanges(cookies={"a": cookie("old")}))
    assert not await ledger.sessions.keep("nobody", 1, SessionChanges(cookies={"a": cookie("old")}))

    known = await ledger.sessions.get("ada")
    assert known is not None
    assert known.cookies == {}


async def test_nothing_is_kept_of_a_session_that_is_not_ready(ledger: Ledger):
    await ledger.sessions.change(None, ADA)

    assert not await ledger.sessions.keep("ada", 1, SessionChanges(cookies={"a": cookie("1")}))
    assert not await ledger.sessions.keep("ada", 1, SessionChanges(cookies={}))


async def test_a_dead_workers_login_may_be_taken_over_at_once(
    store: LedgerFactory, clock: FakeClock
):
    ledger = await store.open()
    worker = Worker(name="w1", machine="m", pid=1, birth="b", started=START, heartbeat=START)
    await ledger.workers.join(worker)
    begun = identities.login_begun(ADA, owner="w1", now=START, lease=LEASE)
    await ledger.sessions.change(None, begun)
    clock.advance(seconds=1)

    await ledger.workers.leave("w1")

    known = await ledger.sessions.get("ada")
    assert known is not None
    assert known.expires == START + timedelta(seconds=1)
    assert identities.earliest_login(known, now=ledger.now(), process_start=START) == ledger.now()


async def test_sessions_are_forgotten_and_dropped(store: LedgerFactory):
    ledger = await store.open()
    await ledger.sessions.change(None, ADA)
    assert await ledger.sessions.forget() == 1
    assert await sessions_in(ledger) == []

    await ledger.sessions.change(None, ADA)
    await ledger.admin.drop()

    assert await sessions_in(await store.open()) == []
