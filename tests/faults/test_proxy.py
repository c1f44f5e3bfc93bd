"""The proxy injects its faults into the driver's commands, on a real server."""

import socket
import struct
import time
from collections.abc import Iterator

import bson
import pymongo
import pytest
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, ConnectionFailure, NetworkTimeout

from tests.faults.proxy import At, End, Fault, Loss, Proxy, proxied
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
def test_a_lost_request_may_be_delivered_later(short_timeout, server_side, proxy: Proxy):
    proxy.plan(At(Fault(loss=Loss.REQUEST, keeps=True), name="insert"))
    with pytest.raises(NetworkTimeout):
        short_timeout.insert_one({"_id": 1})
    assert server_side.count_documents({}) == 0

    (reply,) = proxy.deliver()

    assert (reply["ok"], reply["n"]) == (1.0, 1)
    assert server_side.count_documents({}) == 1
    assert proxy.deliver() == []


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
