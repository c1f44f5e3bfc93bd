"""The proxy injects its faults into the driver's commands, on a real server."""

import gc
import random
import socket
import struct
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import bson
import pymongo
import pytest
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, ConnectionFailure, NetworkTimeout

from tests.faults.proxy import At, ByChance, End, Fault, Loss, Proxy, proxied
from tests.faults.wires import Command
from tests.support.mongod import with_database

#: Seconds until a client with a short timeout gives up.
WAIT = 1.5
OPTIONS = {"retryWrites": False, "retryReads": False}


@pytest.fixture
def network(mongodb_uri: str, database_name: str) -> Iterator[tuple[Proxy, str]]:
    with proxied(with_database(mongodb_uri, database_name)) as (proxy, uri):
        yield proxy, uri


@pytest.fixture
def proxy(network: tuple[Proxy, str]) -> Proxy:
    return network[0]


@pytest.fixture
def client_side(network: tuple[Proxy, str]) -> Iterator[Collection]:
    """A collection behind the proxy."""
    with pymongo.MongoClient(network[1], **OPTIONS) as client:
        client.admin.command("ping")
        yield client.get_default_database()["things"]


@pytest.fixture
def short_timeout(network: tuple[Proxy, str]) -> Iterator[Collection]:
    """The same with a short timeout, for commands without an answer."""
    options = OPTIONS | {"timeoutMS": round(1000 * WAIT), "serverSelectionTimeoutMS": 2000}
    with pymongo.MongoClient(network[1], **options) as client:
        client.admin.command("ping")
        yield client.get_default_database()["things"]


@pytest.fixture
def server_side(mongodb_uri: str, database_name: str) -> Iterator[Collection]:
    """The same collection, seen from the server's side."""
    with pymongo.MongoClient(mongodb_uri) as client:
        yield client[database_name]["things"]


def eventually(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def _answers(collection: Collection) -> bool:
    try:
        collection.count_documents({})
    except ConnectionFailure:
        # After an error the driver waits for its monitor to find the server again.
        return False
    return True


def test_what_is_not_planned_passes_unchanged(client_side, server_side, proxy: Proxy):
    documents = [{"_id": n, "text": "x" * n * 100} for n in range(300)]

    client_side.insert_many(documents)

    assert list(client_side.find().sort("_id").batch_size(50)) == documents
    assert list(server_side.find().sort("_id")) == documents


def test_commands_are_known_by_name_and_collection(client_side, proxy: Proxy):
    proxy.plan(None)

    client_side.insert_many([{"_id": n} for n in range(1000)])
    client_side.bulk_write([pymongo.UpdateOne({"_id": n}, {"$set": {"n": 1}}) for n in range(10)])
    client_side.find_one_and_update({"_id": 1}, {"$set": {"n": 2}})
    client_side.database.command("ping")

    assert [(each.name, each.target) for each in proxy.commands()] == [
        ("insert", "things"),
        ("update", "things"),
        ("findAndModify", "things"),
    ]


@pytest.mark.thorough
@pytest.mark.representative("close")
@pytest.mark.parametrize(
    ("loss", "arrives"),
    [(Loss.REQUEST, False), (Loss.REPLY, True), (Loss.HALF_THE_REPLY, True)],
)
@pytest.mark.parametrize(
    ("end", "error"),
    [
        (End.SILENCE, NetworkTimeout),
        (End.CLOSE, AutoReconnect),
        (End.RESET, AutoReconnect),
    ],
)
def test_a_loss_is_an_error_for_the_client_and_the_server_knows_or_not(
    short_timeout, server_side, proxy: Proxy, loss: Loss, arrives: bool, end: End, error
):
    proxy.plan(At(Fault(loss=loss, end=end), name="insert", target="things"))
    began = time.monotonic()

    with pytest.raises(error):
        short_timeout.insert_one({"_id": 1})

    took = time.monotonic() - began
    # Other ends raise at once: their error is no timeout.
    assert took >= WAIT * 0.9 or end is not End.SILENCE
    eventually(lambda: server_side.count_documents({}) == int(arrives))
    eventually(lambda: _answers(short_timeout))


@pytest.mark.thorough
def test_a_plan_is_for_one_command_behind_others(short_timeout, server_side, proxy: Proxy):
    plan = At(Fault(loss=Loss.REQUEST, end=End.CLOSE), name="insert", target="things", skip=1)
    proxy.plan(plan)

    short_timeout.database["others"].insert_one({})
    short_timeout.insert_one({"_id": 1})
    assert not plan.struck.is_set()
    with pytest.raises(ConnectionFailure):
        short_timeout.insert_one({"_id": 2})
    assert plan.struck.is_set()
    eventually(lambda: _answers(short_timeout))

    assert short_timeout.insert_one({"_id": 3}).acknowledged
    assert sorted(each["_id"] for each in server_side.find()) == [1, 3]


@pytest.mark.thorough
def test_a_request_that_is_delayed_arrives_though_nobody_waits_for_it(
    short_timeout, server_side, proxy: Proxy
):
    proxy.plan(At(Fault(delay=timedelta(seconds=2 * WAIT)), name="insert"))

    with pytest.raises(NetworkTimeout):
        short_timeout.insert_one({"_id": 1})

    assert server_side.count_documents({}) == 0
    eventually(lambda: server_side.count_documents({}) == 1)


def test_a_short_delay_is_no_error(client_side, proxy: Proxy):
    proxy.plan(At(Fault(delay=timedelta(seconds=WAIT / 6)), name="insert"))

    assert client_side.insert_one({"_id": 1}).acknowledged


@pytest.mark.thorough
def test_a_lost_request_may_be_delivered_later(short_timeout, server_side, proxy: Proxy):
    proxy.plan(At(Fault(loss=Loss.REQUEST, keeps=True), name="insert"))
    with pytest.raises(NetworkTimeout):
        short_timeout.insert_one({"_id": 1})
    assert server_side.count_documents({}) == 0

    (reply,) = proxy.deliver()

    assert (reply["ok"], reply["n"]) == (1.0, 1)
    assert server_side.count_documents({}) == 1
    assert proxy.deliver() == []


def test_a_request_may_be_delivered_twice(client_side, server_side, proxy: Proxy):
    proxy.plan(At(Fault(keeps=True), name="update"))
    client_side.insert_one({"_id": 1, "n": 0})
    client_side.update_one({"_id": 1}, {"$inc": {"n": 1}})

    (reply,) = proxy.deliver()

    assert reply["nModified"] == 1
    assert server_side.find_one() == {"_id": 1, "n": 2}


@pytest.mark.thorough
def test_a_half_open_connection_lets_nothing_pass_any_more(proxy: Proxy):
    """Checked with a plain socket, since the driver drops such a connection."""
    hello = _request({"hello": 1, "$db": "admin"})
    proxy.plan(At(Fault(loss=Loss.REPLY), name="hello"))
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.settimeout(WAIT)
        connection.sendall(hello)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.sendall(hello)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def _request(command: dict) -> bytes:
    body = b"\0" * 5 + bson.encode(command)
    return struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body


@pytest.mark.thorough
def test_a_cut_refuses_everybody_until_it_is_mended(short_timeout, proxy: Proxy):
    short_timeout.insert_one({"_id": 1})
    proxy.cut()

    with pytest.raises(ConnectionFailure):
        short_timeout.count_documents({})

    proxy.mend()
    eventually(lambda: _answers(short_timeout))


@pytest.mark.thorough
def test_what_is_frozen_arrives_when_it_thaws(short_timeout, server_side, proxy: Proxy):
    short_timeout.insert_one({"_id": 1})
    proxy.freeze()
    with pytest.raises(ConnectionFailure):
        short_timeout.insert_one({"_id": 2})
    assert server_side.count_documents({}) == 1

    proxy.mend()

    eventually(lambda: server_side.count_documents({}) == 2)


def test_chance_repeats_itself():
    faults = [Fault(loss=loss) for loss in (Loss.REQUEST, Loss.REPLY)]
    commands = [Command(name, "things", {}) for name in ("update", "find", "hello") * 100]

    first, second = (
        [plan(command) for command in commands]
        for plan in (ByChance(faults, rate=0.3, seed=7, names={"update"}) for _ in range(2))
    )

    assert first == second
    struck = [command.name for command, fault in zip(commands, first, strict=True) if fault]
    assert set(struck) == {"update"}
    assert 15 <= len(struck) <= 45


def test_without_names_chance_spares_what_is_the_drivers_own():
    plan = ByChance([Fault(loss=Loss.REQUEST)], rate=1.0, seed=1)

    struck = [name for name in ("find", "hello", "update", "ping") if plan(Command(name, "", {}))]

    assert struck == ["find", "update"]


def test_many_at_once_pass(client_side, server_side, proxy: Proxy):
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: client_side.insert_one({"_id": n}), range(200)))

    assert server_side.count_documents({}) == 200
    assert len(proxy.commands()) == 200


def test_it_leaves_no_thread(mongodb_uri: str):
    with proxied(mongodb_uri) as (_, uri), pymongo.MongoClient(uri) as client:
        client.admin.command("ping")

    assert "fault proxy" not in {thread.name for thread in threading.enumerate()}


def test_who_connects_while_it_stops_leaves_no_socket(mongodb_uri: str):
    def call(port: int) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as calling:
            calling.recv(1)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for seed in range(50):
            with proxied(mongodb_uri) as (proxy, _):
                calls = [threading.Thread(target=call, args=(proxy.port,)) for _ in range(3)]
                for each in calls:
                    each.start()
                # Close while some connections are open, some are opening and some will be refused.
                threading.Event().wait(random.Random(seed).uniform(0, 0.002))
            for each in calls:
                each.join()
        gc.collect()

    assert [str(warning.message) for warning in warned] == []
