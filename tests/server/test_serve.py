"""`crawlcw serve`: each request, each refusal, resends, several servers, and its end."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from crawlcw.errors import LedgerError, LedgerUnavailableError
from crawlcw.server.serving import serving
from crawlcw.tracking import Tracker
from tests.support.servers import TOKEN, Client, ServerProcess, error_of, served


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


def keys(answer: tuple[int, Any]) -> list[str]:
    status, found = answer
    assert status == 200, found
    return [each["key"] for each in found["tasks"]]


# --- operations, on both stores


async def test_a_task_is_created_held_renewed_and_finished(ledger_url: str):
    async with served(ledger_url) as (client, _):
        created = await client.post("/create_task", key="a/ä", data={"n": 1}, priority=3)
        again = await client.post("/create_task", key="a/ä", data={"n": 2})
        _, held = await client.post("/claim_task", worker="ann", limit=5)
        renewed = await client.post("/renew_task", worker="ann", keys=["a/ä", "other"])
        ending = {"worker": "ann", "key": "a/ä", "fence": 1, "status": "finished"}
        done = await client.post("/end_task", **ending, result=[1], data={"n": 9})
        resent = await client.post("/end_task", **ending, result=[1], data={"n": 9})
        _, task = await client.get("/task/a%2F%C3%A4")

        assert created == (200, {"new": 1, "existing": 0, "rejected": []})
        assert again == (200, {"new": 0, "existing": 1, "rejected": []})
        (assigned,) = held["tasks"]
        assert assigned.pop("expires_at") > task["create_time"]
        assert assigned == {
            "key": "a/ä",
            "stage": "todo",
            "data": {"n": 1},
            "context": {},
            "fence": 1,
            "attempt": 1,
        }
        assert renewed == (200, {"keys": ["a/ä"]})
        assert done == resent == (200, {"accepted": True})
        assert (task["status"], task["data"], task["results"]) == (
            "finished",
            {"n": 9},
            {"todo": [1]},
        )
        assert [(each["worker"], each["event"]) for each in task["trace"]] == [("@ann", "finish")]
        assert await client.post("/renew_task", worker="ann") == (200, {"keys": []})


async def test_each_ending_does_what_it_says(ledger_url: str):
    async with served(ledger_url, backoff_base="0s") as (client, _):
        names = ["fail", "last", "spam", "back", "next"]
        tasks = [{"key": key, "priority": -n} for n, key in enumerate(names)]
        await client.post("/create_task", tasks=tasks)
        await client.post("/claim_task", worker="ann", limit=9)

        async def end(key: str, **said: Any) -> None:
            body = {"worker": "ann", "key": key, "fence": 1, **said}
            for _ in range(2):
                assert await client.post("/end_task", **body) == (200, {"accepted": True})

        await end("fail", status="failed", error="broken")
        await end("last", status="failed", error="broken", may_retry=False)
        await end("spam", status="ignored", error="unwanted")
        await end("back", status="released")
        await end("next", status="advanced", stage="print", context={"c": 1}, delay=0)

        found = {}
        for key in names:
            _, task = await client.get(f"/task/{key}")
            found[key] = (task["status"], task["stage"], task["reason"], task["retry"])
        assert found == {
            "fail": ("failed", "todo", "task-error", 1),
            "last": ("ignored", "todo", "task-error", 1),
            "spam": ("ignored", "todo", "unwanted", 0),
            "back": ("todo", "todo", None, 0),
            "next": ("todo", "print", None, 0),
        }
        _, held = await client.post("/claim_task", worker="bob", limit=9, stages=["print"])
        assert [(each["key"], each["context"]) for each in held["tasks"]] == [("next", {"c": 1})]


async def test_tasks_are_found_page_by_page_and_counted(ledger_url: str):
    async with served(ledger_url, inline_limit=1_000) as (client, _):
        tasks = [{"key": str(n), "stage": "scan" if n % 2 else "print"} for n in range(5)]
        await client.post("/create_task", tasks=[*tasks, {"key": "big", "data": {"x": "y" * 5000}}])
        await client.post("/claim_task", worker="ann", limit=1, stages=["scan"])

        first = await client.get("/tasks?stage=scan&limit=1")
        after = first[1]["next_cursor"]
        second = await client.get("/tasks", params={"stage": "scan", "limit": 9, "cursor": after})
        waiting = await client.get("/tasks?status=todo&changed_before=9999-12-31T23:59:59Z")
        failed = await client.get(
            "/tasks?reason=task-error&changed_since=2020-01-01T00:00:00%2B01:00"
        )
        _, stats = await client.get("/stats")
        _, found = await client.get("/tasks?stage=todo")
        _, big = await client.get("/task/big")

        assert sorted(keys(first) + keys(second)) == ["1", "3"]
        assert second[1]["next_cursor"] is None
        assert len(keys(waiting)) == 5
        assert keys(failed) == []
        assert (stats["use_case"], stats["total"], stats["counts"]["processing"]) == (
            "orders",
            6,
            1,
        )
        assert stats["next_due"] is not None
        assert (found["tasks"][0]["data"], found["tasks"][0]["large_values"]) == (None, ["data"])
        assert (big["data"], big["large_values"]) == ({"x": "y" * 5000}, [])


async def test_a_request_that_is_sent_again_gets_the_same_tasks(ledger_url: str):
    async with served(ledger_url) as (client, _):
        await client.post("/create_task", tasks=[{"key": str(n)} for n in range(6)])

        first = await client.post("/claim_task", worker="ann", limit=2, request="r1")
        other = await client.post("/claim_task", worker="ann", limit=2, request="r2")
        again = await client.post("/claim_task", worker="ann", limit=2, request="r1")

        assert set(keys(first)) == set(keys(again))
        assert set(keys(first)).isdisjoint(keys(other))


@pytest.mark.thorough
@pytest.mark.representative("sqlite")
async def test_two_servers_and_twenty_clients_hand_nothing_out_twice(
    ledger_url: str, processes: ExitStack
):
    servers = [ServerProcess(processes, ledger_url, "--port", "0") for _ in range(2)]
    for server in servers:
        server.ready()
    handed: list[str] = []

    async def work(client: Client, name: str) -> None:
        while True:
            _, held = await client.post("/claim_task", worker=name, limit=4)
            if not held["tasks"]:
                return
            for each in held["tasks"]:
                handed.append(each["key"])
                ending = {"worker": name, "key": each["key"], "fence": each["fence"]}
                answer = await client.post("/end_task", **ending, status="finished")
                assert answer == (200, {"accepted": True})

    async with aiohttp.ClientSession() as http:
        clients = [Client(http, server.address) for server in servers]
        tasks = [{"key": str(n)} for n in range(100)]
        await asyncio.gather(*(client.post("/create_task", tasks=tasks) for client in clients))
        await asyncio.gather(*(work(clients[n % 2], f"w{n}") for n in range(20)))
        _, stats = await clients[0].get("/stats")

    assert len(handed) == len(set(handed)) == 100
    assert (stats["total"], stats["counts"]["finished"]) == (100, 100)
    for server in servers:
        assert server.stop(signal.SIGTERM) == (0, "", "")


# --- waiting


async def test_a_worker_that_waits_gets_a_task_as_soon_as_it_is_there(sqlite_url: str):
    async with served(sqlite_url) as (client, _):
        waiting = asyncio.create_task(client.post("/claim_task", worker="ann", wait=30))
        await client.post("/create_task", key="a")

        assert keys(await waiting) == ["a"]
        assert keys(await client.post("/claim_task", worker="bob", wait=0.01)) == []


def noted(tracker: Tracker) -> asyncio.Event:
    """Return an event that is set when a client's tasks are looked for."""
    asked = asyncio.Event()
    held = tracker.ledger.leases.leases_of

    async def seen(worker: str):
        asked.set()
        return await held(worker)

    tracker.ledger.leases.leases_of = seen  # type: ignore[method-assign]
    return asked


async def test_the_end_of_the_server_ends_the_waiting_and_not_the_request(sqlite_url: str):
    async with served(sqlite_url) as (client, tracker):
        asked = noted(tracker)
        async with serving(tracker, host="127.0.0.1", port=0, token=None) as address:
            other = Client(client.http, address)
            waiting = asyncio.create_task(other.post("/claim_task", worker="ann", wait=30))
            await asked.wait()
            began = asyncio.get_running_loop().time()

        assert await waiting == (200, {"tasks": []})
        # Long before the end of its wait, and of the server's grace.
        assert asyncio.get_running_loop().time() - began < 10
        with pytest.raises(aiohttp.ClientConnectorError):
            await other.get("/stats")


async def connected(
    address: str, body: bytes, *headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request for tasks without its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    head = [
        "POST /claim_task HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *headers,
    ]
    writer.write("".join(f"{line}\r\n" for line in [*head, ""]).encode())
    return reader, writer


# --- refusals


async def test_what_is_not_held_or_not_there_is_refused(ledger_url: str):
    async with served(ledger_url) as (client, _):
        await client.post("/create_task", key="a")
        ending = {"worker": "ann", "status": "finished", "fence": 1}

        nobody = await client.post("/end_task", **ending, key="a")
        await client.post("/claim_task", worker="bob")
        stolen = await client.post("/end_task", **ending, key="a")
        old = await client.post("/end_task", **ending | {"worker": "bob", "fence": 7}, key="a")
        none = await client.post("/end_task", **ending, key="\x1b[2J")
        unknown = await client.get("/task/nothing")

        assert [each[0] for each in (nobody, stolen, old, none, unknown)] == [409] * 3 + [404] * 2
        assert error_of(stolen) == "ann does not hold task 'a' with fence 1"
        assert "\\x1b" in error_of(none)
        assert error_of(unknown) == "task 'nothing' does not exist: add it first"


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("/create_task", {}, "body.key: Field required"),
        ("/create_task", {"key": ""}, "body.key: String should have at least 1 character"),
        (
            "/create_task",
            {"key": "ä" * 1000},
            "a key must have 1 to 1024 bytes, but this one has 2000",
        ),
        ("/create_task", {"key": "a", "prio": 1}, "body.prio: Extra inputs are not permitted"),
        ("/create_task", {"key": "a", "priority": "1"}, "body.priority: Input should be a valid"),
        ("/create_task", {"key": "a", "priority": 1001}, "body.priority: Input should be less"),
        ("/create_task", {"key": "a", "delay": -1}, "body.delay: Input should be greater than"),
        ("/create_task", {"key": "a", "stage": "a b"}, "body.stage: String should match pattern"),
        ("/create_task", {"key": "a", "data": [1]}, "body.data: Input should be a valid dict"),
        ("/create_task", {"key": "a", "tasks": []}, "body.key: Extra inputs"),
        ("/create_task", {"tasks": [{"key": 1}]}, "body.tasks.0.key: Input should be a valid str"),
        ("/create_task", {"tasks": [{"key": "a"}] * 1001}, "body.tasks: List should have at most"),
        ("/create_task", [], "body: Input should be"),
        ("/claim_task", {"worker": "a:b"}, "body.worker: String should match pattern"),
        ("/claim_task", {"worker": "a", "limit": 1001}, "body.limit: Input should be less than"),
        ("/claim_task", {"worker": "a", "limit": True}, "body.limit: Input should be a valid int"),
        ("/claim_task", {"worker": "a", "wait": 31}, "body.wait: Input should be less than or"),
        ("/end_task", {"worker": "a", "key": "a", "fence": 1}, "body: Unable to extract tag"),
        (
            "/end_task",
            {"worker": "a", "key": "a", "fence": 1, "status": "failed"},
            "body.error: Field required",
        ),
        (
            "/end_task",
            {"worker": "a", "key": "a", "fence": 1, "status": "released", "data": {}},
            "body.data: Extra inputs are not permitted",
        ),
        ("/renew_task", {"worker": "a", "keys": "a"}, "body.keys: Input should be a valid list"),
    ],
)
async def test_what_has_the_wrong_shape_is_refused_by_name(
    sqlite_url: str, path: str, body: Any, said: str
):
    async with served(sqlite_url) as (client, tracker):
        async with client.http.post(client.address + path, json=body) as response:
            answer = response.status, await response.json()

        assert answer[0] == 422
        assert error_of(answer).startswith(said)
        assert (await tracker.counts()).total == 0


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("limit=0", "query.limit: Input should be greater than or equal to 1"),
        ("limit=1e3", "query.limit: Input should be a valid integer"),
        ("limit=1&limit=2", "query.limit: the parameter occurs twice"),
        ("status=dead", "query.status: Input should be 'todo'"),
        ("changed_since=2024-01-01", "query.changed_since: Input should be a valid datetime"),
        (
            "changed_since=0001-01-01T00:00:00%2B23:00",
            "query.changed_since: Value error, the time is out of range",
        ),
        ("cursor=abc", "query.cursor: String should match pattern"),
        ("page=2", "query.page: Extra inputs are not permitted"),
    ],
)
async def test_a_wrong_question_is_refused_by_name(sqlite_url: str, query: str, said: str):
    async with served(sqlite_url) as (client, _):
        answer = await client.get(f"/tasks?{query}")

        assert answer[0] == 422
        assert error_of(answer).startswith(said)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is not JSON"),
        (b'{"key": ', "the body is not JSON"),
        (b'{"key": "a", "data": {"x": NaN}}', "the body is not JSON: NaN is not a number"),
        (b'{"key": "\xff"}', "the body is not UTF-8"),
        (b"[" * 100_000, "the body is nested too deeply"),
        (b'{"key": ' + b"9" * 5_000 + b"}", "the body is not JSON"),
    ],
)
async def test_what_is_no_json_is_refused(sqlite_url: str, body: bytes, said: str):
    async with served(sqlite_url) as (client, _):
        answer = await client.send("/create_task", body)

        assert answer[0] == 400
        assert error_of(answer).startswith(said)


async def test_bodies_are_bounded_and_plain_json_only(sqlite_url: str):
    async with served(sqlite_url) as (client, tracker):
        large = await client.send("/create_task", BytesIO(b'{"key": "' + b"a" * (8 << 20) + b'"}'))
        form = await client.send("/create_task", b'{"key": "a"}', Content_Type="text/plain")
        packed = await client.send("/create_task", b'{"key": "a"}', Content_Encoding="br")
        just = b'{"key": "a", "data": {"x": "' + b"a" * ((8 << 20) - 100) + b'"}}'
        fits = await client.send("/create_task", BytesIO(just))

        assert [each[0] for each in (large, form, packed, fits)] == [413, 415, 415, 200]
        assert error_of(large) == "the body is larger than 8 MiB"
        assert error_of(form) == "the content type must be application/json"
        assert "Content-Encoding" in error_of(packed)
        assert (await tracker.counts()).total == 1


async def test_other_addresses_and_methods_are_refused(sqlite_url: str):
    async with served(sqlite_url) as (client, _):
        assert (await client.get("/nothing"))[0] == 404
        async with client.http.put(client.address + "/stats") as response:
            assert (response.status, response.headers["Allow"]) == (405, "GET")
            assert (await response.json()).keys() == {"error"}


async def test_a_server_with_a_token_answers_to_nobody_else(sqlite_url: str):
    async with served(sqlite_url, token=TOKEN) as (client, _):

        async def asked(header: str | None, path: str = "/stats") -> int:
            headers = {} if header is None else {"Authorization": header}
            async with client.http.get(client.address + path, headers=headers) as response:
                if response.status == 401:
                    assert response.headers["WWW-Authenticate"] == "Bearer"
                return response.status

        refused = [None, "", "Bearer", "Bearer let-me-i", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "ä"]
        assert [await asked(each) for each in refused] == [401] * len(refused)
        assert await asked(None, "/openapi.json") == 401
        assert await asked(None, "/nothing") == 401
        assert await asked(f"bearer {TOKEN}") == 200
        # With the token, any host name is accepted.
        both = {"Authorization": f"Bearer {TOKEN}", "Host": "tasks.example"}
        assert (await client.get("/stats", headers=both))[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:99", 200),
        ("[::1]:8700", 200),
        ("LOCALHOST", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example:8700", 403),
        ("0.0.0.0", 403),
        ("", 403),
    ],
)
async def test_without_a_token_only_names_of_this_machine_are_answered_to(
    sqlite_url: str, host: str, status: int
):
    async with served(sqlite_url) as (client, _):
        answer = await client.get("/stats", headers={"Host": host})

        assert answer[0] == status
        if status == 403:
            assert error_of(answer).startswith(
                "without a token, the server accepts only requests to localhost"
            )


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (LedgerUnavailableError("it\nburns"), 503, "the ledger is unavailable"),
        (LedgerError("it cannot be kept"), 422, "it cannot be kept"),
        (RuntimeError("secret"), 500, "internal error: the log of the server"),
    ],
)
async def test_what_goes_wrong_behind_the_server_is_told_in_one_sentence(
    sqlite_url: str, error: Exception, status: int, said: str, monkeypatch: pytest.MonkeyPatch
):
    async def broken() -> None:
        raise error

    async with served(sqlite_url) as (client, tracker):
        monkeypatch.setattr(tracker.ledger.queries, "counts", broken)

        async with client.http.get(client.address + "/stats") as response:
            answer = response.status, await response.json()
            assert response.headers.get("Retry-After") == ("1" if status == 503 else None)
            assert response.headers["Cache-Control"] == "no-store"

        assert answer[0] == status
        assert error_of(answer).startswith(said)
        assert "secret" not in error_of(answer)


# --- the command


async def no_longer_listens(address: str) -> None:
    url = urlsplit(address)
    while True:
        try:
            _, writer = await asyncio.open_connection(url.hostname, url.port)
        except (ConnectionRefusedError, ConnectionResetError):
            # Reset: the port was closed before the connection was accepted.
            return
        writer.close()
        await asyncio.sleep(0.01)


async def test_the_command_says_where_it_serves_and_answers_what_is_under_way_before_it_ends(
    sqlite_url: str, processes: ExitStack, tmp_path: Path
):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    options = ("--port", "0", "--log-level", "info", "--token-file", str(tmp_path / "token"))
    server = ServerProcess(processes, sqlite_url, *options, CRAWLCW_TOKEN="another")
    line = server.ready()
    assert line == f"serving orders at {server.address} (see {server.address}/openapi.json)\n"

    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        client = Client(http, server.address)
        await client.post("/create_task", key="a\x1b[2J")
        assert (await client.get("/task/a%1B%5B2J%0A"))[0] == 404

    body = b'{"worker": "ann", "wait": 30, "stages": ["none"]}'
    reader, writer = await connected(
        server.address, body, f"Authorization: Bearer {TOKEN}", "Expect: 100-continue"
    )
    # The server sends 100 when it starts to handle the request.
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    server.process.send_signal(signal.SIGTERM)
    # The stopping server still reads the rest of the request.
    await no_longer_listens(server.address)
    writer.write(body)
    answer = await reader.read()
    writer.close()

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b'{"tasks":[]}')
    assert await asyncio.to_thread(server.result) == (0, "", "")


async def test_of_a_declared_use_case_the_chain_is_known(
    sqlite_url: str, processes: ExitStack, tmp_path: Path
):
    (tmp_path / "films.py").write_text(
        "from crawlcw.tracking import UseCase\nfilms = UseCase('films', chain=('cut', 'show'))\n"
    )
    server = ServerProcess(
        processes, sqlite_url, "--port", "0", use_case=str(tmp_path / "films.py")
    )
    assert server.ready().startswith("serving films at")

    async with aiohttp.ClientSession() as http:
        client = Client(http, server.address)
        await client.post("/create_task", key="a")
        ending = {"worker": "ann", "key": "a", "status": "finished"}
        stages = []
        for fence in (1, 2):
            _, held = await client.post("/claim_task", worker="ann")
            stages.append(held["tasks"][0]["stage"])
            await client.post("/end_task", **ending, fence=fence)
        _, task = await client.get("/task/a")

    assert (stages, task["status"]) == (["cut", "show"], "finished")


async def test_a_second_signal_ends_the_command_at_once(sqlite_url: str, processes: ExitStack):
    server = ServerProcess(processes, sqlite_url, "--port", "0")
    server.ready()
    reader, writer = await connected(server.address, b"{}", "Expect: 100-continue")
    await reader.readuntil(b"\r\n\r\n")
    server.process.send_signal(signal.SIGINT)
    with pytest.raises(ConnectionError):
        while True:
            (await connected(server.address, b""))[1].close()

    server.process.send_signal(signal.SIGINT)

    assert await asyncio.to_thread(server.result) == (130, "", "")
    writer.close()


def refused(ended: ExitStack, url: str, *options: str, **environment: str) -> str:
    """Return the error message of a server that cannot start, one line."""
    code, out, err = ServerProcess(ended, url, *options, **environment).result()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    return err


def test_another_host_needs_a_token(sqlite_url: str, processes: ExitStack, tmp_path: Path):
    said = refused(processes, sqlite_url, "--host", "0.0.0.0")

    assert said == (
        "crawlcw: other machines can reach 0.0.0.0: set a token by --token-file or "
        "CRAWLCW_TOKEN, or serve on 127.0.0.1\n"
    )
    assert not (tmp_path / "ledger.db").exists()


def test_a_token_that_is_none_is_refused(sqlite_url: str, processes: ExitStack, tmp_path: Path):
    (tmp_path / "token").write_text("two words\n")

    assert "holds no token" in refused(
        processes, sqlite_url, "--token-file", str(tmp_path / "token"), CRAWLCW_TOKEN=TOKEN
    )
    assert "cannot be read" in refused(processes, sqlite_url, "--token-file", str(tmp_path))


def test_a_port_in_use_and_a_wrong_host_are_one_sentence(sqlite_url: str, processes: ExitStack):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(processes, sqlite_url, "--port", str(port))
    assert said.startswith(f"crawlcw: port {port} of 127.0.0.1 is in use")

    options = ("--port", "0", "--host", "no-such-host.invalid")
    said = refused(processes, sqlite_url, *options, CRAWLCW_TOKEN=TOKEN)
    assert said == "crawlcw: the host 'no-such-host.invalid' does not exist\n"


def test_without_pydantic_the_command_says_what_to_install(
    sqlite_url: str, processes: ExitStack, tmp_path: Path
):
    (tmp_path / "pydantic.py").write_text("raise ModuleNotFoundError(name='pydantic')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])

    said = refused(processes, sqlite_url, PYTHONPATH=path)

    assert "install it with `pip install 'crawlcw[serve]'`" in said


# --- metrics


async def test_the_servers_metrics_tell_of_requests_and_tasks(sqlite_url: str):
    async with served(sqlite_url) as (client, _):
        await client.post("/create_task", key="a")
        await client.post("/claim_task", worker="ann", limit=1)
        await client.get("/task/nobody-knows-this-key")
        await client.get("/no-such-place")
        async with client.http.get(f"{client.address}/metrics") as answer:
            text = await answer.text()

    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=")
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines())
    assert numbers['crawlcw_info{name="orders"}'] == "1.0"
    assert numbers['crawlcw_tasks{status="processing"}'] == "1.0"
    requests = {
        each: numbers[f'crawlcw_http_requests_total{{operation="{each}"}}']
        for each in ("create_task", "task", "other")
    }
    assert requests == dict.fromkeys(requests, "1.0")
    assert numbers['crawlcw_http_requests_refused_total{code="404"}'] == "2.0"
    assert numbers["crawlcw_http_request_duration_seconds_count"] == "4.0"
    # Keys are data of tasks, and no labels.
    assert "nobody" not in text
    assert "no-such" not in text
