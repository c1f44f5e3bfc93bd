"""Access control on MongoDB: privileges of its users, and errors in a ledger's URL."""

import asyncio
import gc
import json
import logging
import socket
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crawlcw import doctor, open_ledger, run_spider
from crawlcw.cli.main import cli, exit_code
from crawlcw.errors import LedgerConfigurationError, LedgerUnavailableError, Reason
from crawlcw.ledger.examination import Kind
from crawlcw.ledger.mongo import MongoLedger, inspection
from crawlcw.ledger.mongo.diagnosis import READING, WRITING, lacking
from crawlcw.ledger.mongo.store import BY_STATUS
from crawlcw.ledger.protocol import TaskFilter
from crawlcw.ledger_opening import open_for_inspection
from crawlcw.testing import ReplayDownloader
from crawlcw.tracking import Tracker
from tests.cli.test_cli_doctor import START_URL, Teas
from tests.support.guarded_mongod import DATABASE, PASSWORD, GuardedServer, guarded
from tests.support.pages import block, guide
from tests.support.servers import served
from tests.support.work_process import crawlcw


async def crawl(url: str) -> None:
    """Crawl three pages; one of them fails."""
    found = ReplayDownloader(
        {START_URL: '<a href="/1">1</a><a href="/2">2</a>', f"{START_URL}1": ""}
    )
    report = await run_spider(Teas(), ledger=url, downloader=found)
    assert report.drained


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    with guarded(tmp_path_factory.mktemp("guarded") / "data") as server:
        yield server


@pytest.fixture(scope="module")
def role() -> dict[str, Any]:
    """The role of the guide."""
    found: dict[str, Any] = json.loads(block(guide("deploying"), "json", '"createRole"'))
    return found


@pytest.fixture(scope="module")
def crawler(server: GuardedServer, role: dict[str, Any]) -> str:
    """The ledger's URL for a user with exactly the role of the guide."""
    server.add_role(role)
    return server.add_user("crawler", "crawler")


@pytest.fixture(scope="module")
def reader(server: GuardedServer) -> str:
    """The ledger's URL for a user that may only read."""
    return server.add_user("reader", "read")


async def declare_orders(url: str) -> None:
    async with Tracker.open(url, "orders") as tracker:
        await tracker.add_many(["order-1"])


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a command in this process; return its exit code, stdout and stderr."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    level = root.level

    def ran(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = exit_code(lambda: cli.main(arguments, prog_name="crawlcw", standalone_mode=False))
        out, err = capsys.readouterr()
        return code, out, err

    yield ran
    root.setLevel(level)
    logging.captureWarnings(False)


# --- privileges


def test_the_role_of_the_guide_has_what_is_asked_for(role: dict[str, Any]):
    (privilege,) = role["privileges"]

    assert privilege["resource"] == {"db": DATABASE, "collection": ""}
    assert set(privilege["actions"]) == WRITING | {"changeStream"}
    assert READING < WRITING


@pytest.mark.thorough
async def test_the_role_of_the_guide_is_enough(server: GuardedServer, crawler: str):
    server.empty()
    await crawl(crawler)
    await change_everything(crawler)
    async with served(crawler, inline_limit=1_000) as (client, tracker):
        assert (await client.post("/create_task", key="a", data={"x": "y" * 5_000}))[0] == 200
        _, held = await client.post("/claim_task", worker="ann")
        ending = {"worker": "ann", "key": "a", "fence": held["tasks"][0]["fence"]}
        done = await client.post("/end_task", **ending, status="finished", result=["z" * 5_000])
        assert done == (200, {"accepted": True})
        watching = tracker.ledger.changes.watch()
        await anext(watching)
        await watching.aclose()
        await tracker.configure(max_retry=2)


async def change_everything(url: str) -> None:
    """Run the operations of all commands that change a ledger."""
    ledger = await open_ledger(url, "teas", create=False, kind=None)
    every = TaskFilter(changed_before=ledger.now() + timedelta(hours=1))
    assert await ledger.admin.retry_failed(every) == 1
    assert await ledger.admin.withdraw(every, reason=Reason.WITHDRAWN) == 1
    assert await ledger.admin.reopen(every, deletes_results=True) == 3
    await ledger.close()
    examined = await open_for_inspection(url, "teas")
    report = await doctor.examine(examined, repair=True, recheck_delay=timedelta(0))
    assert report is not None
    assert report.is_clean
    assert Kind.MAY_NOT_WRITE not in report.findings
    await examined.close()


LOOKS = (
    ("stats", "teas"),
    ("stats", "teas", "--json"),
    ("hosts", "teas"),
    ("tasks", "teas"),
    ("tasks", "teas", "--key", START_URL, "--json"),
    ("export", "teas", "-o", "-"),
    ("retry-failed", "teas", "--dry-run"),
    ("ignore", "teas", "--all", "--dry-run"),
    ("recrawl", "teas", "--url-prefix", START_URL, "--dry-run"),
    ("show", "teas", START_URL),
    ("set", "teas"),
    ("policy", "orders"),
)
CHANGES = (
    ("retry-failed", "teas"),
    ("ignore", "teas", START_URL),
    ("reset", "teas", START_URL),
    ("policy", "orders", "max_retry=3"),
    ("add", "orders", "more.txt"),
    ("add", "teas", START_URL),
    ("purge", "teas", START_URL, "--yes"),
    ("pause", "teas"),
    ("resume", "teas"),
    ("stop", "teas"),
    ("set", "teas", "delay=1s"),
)


def test_who_may_only_read_can_look_and_change_nothing(
    server: GuardedServer,
    crawler: str,
    reader: str,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    server.empty()
    asyncio.run(crawl(crawler))
    asyncio.run(declare_orders(crawler))
    before = server.everything()

    for arguments in LOOKS:
        assert run(*arguments, "--ledger", reader)[::2] == (0, ""), arguments
    code, out, err = run("doctor", "teas", "--ledger", reader)
    assert (code, err) == (0, "")
    assert "w: majority, j: true: not asked" in out
    assert "note may-not-write (1): this user may read, but lacks privileges" in out
    assert "createCollection, createIndex, insert, remove, update" in out
    monkeypatch.chdir(tmp_path)
    Path("more.txt").write_text("order-2\n")
    for arguments in CHANGES:
        code, out, err = run(*arguments, "--ledger", reader)
        assert (code, out) == (78, ""), arguments
        assert err.count("\n") == 1
        assert err.startswith("crawlcw: the MongoDB user ")
        assert "update" in err
        assert "`crawlcw guide deploying` lists the roles" in err
        assert PASSWORD not in err

    assert server.everything() == before


def test_a_crawl_of_a_user_who_may_only_read_says_what_is_missing(
    server: GuardedServer, crawler: str, reader: str, tmp_path: Path
):
    server.empty()
    asyncio.run(crawl(crawler))
    before = server.everything()
    spider = tmp_path / "teas.py"
    spider.write_text(
        "from crawlcw import Spider\nclass Teas(Spider):\n    name = 'teas'\n"
        f"    start_urls = [{START_URL!r}]\n    def parse(self, response): pass\n"
    )

    ended = crawlcw("run", spider, "--ledger", reader)

    assert (ended.returncode, ended.stdout) == (78, "")
    assert ended.stderr == (
        "crawlcw: the MongoDB user lacks these privileges in the database crawl: "
        "createCollection, createIndex, insert, remove, update (`crawlcw guide deploying` lists "
        "the roles)\n"
    )
    assert server.everything() == before


@pytest.mark.parametrize("name", ["teas", "typo"])
def test_a_look_where_nothing_is_recorded_makes_nothing(
    server: GuardedServer, crawler: str, run: Run, name: str
):
    server.empty()
    asyncio.run(crawl(crawler))
    with server.administered() as client:
        client[DATABASE].drop_collection("teas")
    before = server.everything()

    for command in ("stats", "hosts", "tasks", "retry-failed", "doctor"):
        code, _, err = run(command, name, "--ledger", crawler)
        assert (code, err.partition(":")[2][:21]) == (2, " nothing is recorded "), command

    assert server.everything() == before


def test_a_look_makes_an_index_that_is_missing_and_a_reader_is_told(
    server: GuardedServer, crawler: str, reader: str, run: Run
):
    server.empty()
    asyncio.run(crawl(crawler))
    with server.administered() as client:
        client[DATABASE]["teas"].drop_index(BY_STATUS)

    code, _, err = run("stats", "teas", "--ledger", reader)
    assert (code, err.count("\n")) == (78, 1)
    assert "createIndex" in err
    assert (
        "index status_update_time_id of teas is missing"
        in (run("doctor", "teas", "--ledger", reader)[1])
    )

    assert run("stats", "teas", "--ledger", crawler)[::2] == (0, "")
    assert BY_STATUS in server.everything()["teas"][1]


def test_who_may_not_see_a_collection_is_told_which(server: GuardedServer, crawler: str, run: Run):
    server.empty()
    asyncio.run(crawl(crawler))
    seen = [
        {"resource": {"db": DATABASE, "collection": name}, "actions": sorted(READING)}
        for name in (
            "teas",
            "teas.hosts",
            "teas.item_keys",
            "teas.items",
            "teas.rates",
            "teas.sessions",
            "crawlcw.schema",
        )
    ]
    workers = {"db": DATABASE, "collection": "teas.workers"}
    seen.append({"resource": workers, "actions": ["listIndexes"]})
    server.add_role({"createRole": "half", "privileges": seen, "roles": []})
    half = server.add_user("half", "half")

    assert run("tasks", "teas", "--ledger", half)[::2] == (0, "")
    code, out, err = run("stats", "teas", "--ledger", half)
    assert (code, out) == (78, "")
    assert err == (
        "crawlcw: the MongoDB user lacks the privilege find on crawl.teas.workers (`crawlcw "
        "guide deploying` lists the roles)\n"
    )


ANYWHERE = {"resource": {"db": "", "collection": ""}, "actions": ["find"]}
OTHER = {"resource": {"db": "other", "collection": ""}, "actions": ["update"]}
ONE = {"resource": {"db": "crawl", "collection": "books"}, "actions": ["update"]}
ALL = {"resource": {"anyResource": True}, "actions": ["find", "update"]}


@pytest.mark.parametrize(
    ("privileges", "missing"),
    [
        ([], ["find", "update"]),
        ([ANYWHERE], ["update"]),
        ([ANYWHERE, OTHER, {"resource": {"cluster": True}, "actions": ["update"]}], ["update"]),
        # On one of two collections only.
        ([ANYWHERE, ONE], ["update"]),
        ([ALL], []),
        (None, []),
    ],
)
def test_what_a_user_lacks_is_read_from_its_privileges(privileges: Any, missing: list[str]):
    users = [{"user": "ann", "db": "crawl"}]
    status = {"authInfo": {"authenticatedUsers": users, "authenticatedUserPrivileges": privileges}}
    asked = {"database": "crawl", "collections": ["books", "books.hosts"]}
    actions = frozenset({"find", "update"})

    assert lacking(status, actions=actions, **asked) == missing
    # A server without access control allows everything.
    status["authInfo"]["authenticatedUsers"] = []
    assert lacking(status, actions=actions, **asked) == []


# --- errors in a URL


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(inspection, "CONNECT_TIMEOUT", 1.0)
    yield
    with warnings.catch_warnings():
        # PyMongo leaks the socket of a connection that is cancelled while it connects; that
        # happens to the next connection to a server that closes them.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def refused(url: str) -> str:
    """Return the error message for a ledger's URL."""
    with pytest.raises(LedgerConfigurationError) as caught:
        await MongoLedger.open(url, "teas")
    said = str(caught.value)
    assert PASSWORD not in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("w=1&authSorce=admin", "URL is invalid: Unknown option authSorce. Did you mean"),
        # An `&` in a password begins another option.
        (f"tlsCertificateKeyFilePassword=my&{PASSWORD}=", "URL is invalid: Unknown option."),
    ],
)
async def test_an_option_that_is_misspelt_is_named(options: str, said: str):
    assert said in await refused(f"mongodb://ann:{PASSWORD}@127.0.0.1:9/crawl?{options}")


@pytest.mark.thorough
@pytest.mark.representative("/nope")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"password": "wr0ng"}, "MongoDB denies access: Authentication failed"),
        ({"authSource": "admin"}, "MongoDB denies access: Authentication failed"),
        ({"replicaSet": "other"}, "belongs to a replica set named 'other' (replicaSet)"),
        (
            {"replicaSet": "other", "directConnection": "false"},
            "belongs to a replica set named 'other' (replicaSet)",
        ),
        ({"tlsCAFile": "/nope"}, "is not usable: "),
        ({"tlsCAFile": "/etc"}, "is not usable: "),
        ({"tlsCAFile": __file__}, "is not usable: "),
        ({"tlsCertificateKeyFile": "/nope"}, "is not usable: "),
        ({"tlsCertificateKeyFile": __file__}, "MongoDB: Private key doesn't match certificate"),
        ({"tls": "maybe"}, "URL is invalid: The value of tls must be 'true' or 'false'"),
        ({"tls": "false"}, "MongoDB: TLS has not been enabled but"),
        ({"timeoutMS": "soon"}, "URL is invalid: timeoutms must be an integer or float"),
        ({"authMechanism": "NOPE"}, "URL is invalid: authmechanism must be in"),
    ],
    ids=lambda value: str(value).replace(__file__, "this file"),
)
async def test_a_url_that_will_not_do_is_one_sentence(
    server: GuardedServer, reader: str, options: dict[str, str], said: str
):
    given = {"serverSelectionTimeoutMS": "1000"} | options

    assert said in await refused(server.url("reader", **given))


async def test_how_a_server_is_spoken_to_is_found_out(
    server: GuardedServer, reader: str, mongodb_uri: str
):
    at_once = "directConnection=true&serverSelectionTimeoutMS=1000"
    user = f"reader:{PASSWORD}"
    plain = mongodb_uri.partition("//")[2].partition("/")[0]

    assert await refused(f"mongodb://{user}@{server.address}/crawl?{at_once}") == (
        f"MongoDB: {server.address} accepts only TLS: add tls=true to the URL"
    )
    untrusted = f"mongodb://{user}@{server.address}/crawl?{at_once}&tls=true"
    assert (await refused(untrusted)).startswith(
        f"MongoDB: the certificate of {server.address} is not trusted (self-signed certificate"
    )
    assert await refused(f"mongodb://{user}@{plain}/crawl?{at_once}&tls=true") == (
        f"MongoDB: {plain} does not use TLS, but the URL has tls=true: remove it"
    )
    nobody = f"mongodb://{server.address}/crawl?{server.url(None).partition('?')[2]}"
    assert await refused(nobody) == (
        "MongoDB needs a user: write mongodb://user:password@host/database"
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "url",
    [
        "mongodb://ann:s3c/r3t@h/crawl",
        "mongodb://ann:s3c:r3t@h/crawl",
        "mongodb://ann:s3c@r3t@h/crawl",
        "mongodb://ann:s3c%r3t@h/crawl",
        "mongodb://ann:s3c?r3t@h/crawl",
        "mongodb://ann:s3cr3t@h:x/crawl",
        "mongodb://ann:s3cr3t@h/cr awl",
        "mongodb://ann:s3cr3t@/crawl",
        "mongodb://ann:s3cr3t@h,h/crawl?directConnection=true",
        "mongodb+srv://ann:s3cr3t@127.0.0.1/crawl",
        "mongodb+srv://ann:s3cr3t@no-such-name.invalid/crawl",
        "mongodb+srv://ann:s3cr3t@no-such-name.invalid:1/crawl",
    ],
)
async def test_a_url_that_is_none_is_refused_without_the_password(url: str):
    with pytest.raises(LedgerConfigurationError) as caught:
        await MongoLedger.open(url, "teas")

    assert "s3c" not in str(caught.value)
    assert "r3t" not in str(caught.value)


async def test_a_server_that_is_only_away_is_no_mistake_of_the_url(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(inspection, "CONNECT_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for options in ("", "tls=true", "replicaSet=tests"):
        url = f"mongodb://127.0.0.1:{port}/?{options}"
        with pytest.raises(LedgerUnavailableError):
            await MongoLedger.open(url, "teas")
