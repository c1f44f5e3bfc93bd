"""The wire protocols of MongoDB and PostgreSQL, as far as a proxy must read them.

Those are the bounds of requests and replies, the request of a reply, and the command of a
request. A wire belongs to one connection.
"""

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import bson

#: Names of commands that are the driver's own, and not part of an operation.
OWN = frozenset({"hello", "ismaster", "isMaster", "ping", "endSessions", "killCursors", "startup"})


@dataclass(frozen=True, slots=True)
class Command:
    """A request, as the proxy reads it."""

    name: str  #: on PostgreSQL the first word of the last statement
    target: str  #: the collection, if the command has one
    body: Mapping[str, Any]


class Wire(Protocol):
    """The protocol on one connection of a client."""

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next whole request, or nothing if the stream ends before it."""

    async def reply(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next whole reply, or what there is of it when the stream ends."""

    def command(self, request: bytes) -> Command | None:
        """Return the command of a request, if it has one; called once for each, in order."""

    def number(self, request: bytes) -> int:
        """Return the number of a request; called once for each that the server gets."""

    def answered(self, reply: bytes) -> tuple[int, bool]:
        """Return the number of the request, and whether more replies follow; called once."""


class MongoWire:
    """OP_MSG: each message has the id of its request."""

    #: messageLength, requestID, responseTo, opCode.
    _HEADER = struct.Struct("<iiii")
    _OP_MSG = 2013
    _FLAGS_SIZE = 4
    _BODY = 0
    _MORE_TO_COME = 1 << 1

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """See `Wire.request`."""
        try:
            header = await reader.readexactly(self._HEADER.size)
        except asyncio.IncompleteReadError:
            return b""
        length: int = self._HEADER.unpack(header)[0]
        return header + await reader.readexactly(length - self._HEADER.size)

    reply = request

    def command(self, request: bytes) -> Command | None:
        """See `Wire.command`."""
        if self._HEADER.unpack_from(request)[3] != self._OP_MSG:
            return None
        body = self.body(request)
        name = next(iter(body))
        target = body[name]
        return Command(name=name, target=target if isinstance(target, str) else "", body=body)

    def number(self, request: bytes) -> int:
        """See `Wire.number`."""
        number: int = self._HEADER.unpack_from(request)[1]
        return number

    def answered(self, reply: bytes) -> tuple[int, bool]:
        """See `Wire.answered`: the driver's monitor gets several replies to a request."""
        _, _, number, opcode = self._HEADER.unpack_from(reply)
        flags: int = struct.unpack_from("<I", reply, self._HEADER.size)[0]
        return number, opcode == self._OP_MSG and bool(flags & self._MORE_TO_COME)

    def body(self, message: bytes) -> dict[str, Any]:
        """Return the document of an OP_MSG, a command or a reply."""
        at = self._HEADER.size + self._FLAGS_SIZE
        while message[at] != self._BODY:
            # A sequence of documents, which begins with its size.
            at += 1 + int(struct.unpack_from("<i", message, at + 1)[0])
        size: int = struct.unpack_from("<i", message, at + 1)[0]
        return bson.decode(message[at + 1 : at + 1 + size])


class PostgresWire:
    """Version 3, without encryption or passwords: replies come in the order of requests.

    A request is a query, or all messages up to a Sync, and a reply is all up to a ReadyForQuery.
    """

    #: The type of a message and its length, which the type is not part of.
    _HEADER = struct.Struct("!ci")

    def __init__(self) -> None:
        self._started = False
        self._statements: dict[bytes, str] = {}
        self._sent = self._replied = 0

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        """See `Wire.request`."""
        if self._started:
            found, end = await self._messages(reader, ends=b"QS")
            return found if end else b""
        # The first message has no type.
        try:
            head = await reader.readexactly(4)
        except asyncio.IncompleteReadError:
            return b""
        length: int = struct.unpack("!i", head)[0]
        return head + await reader.readexactly(length - len(head))

    async def reply(self, reader: asyncio.StreamReader) -> bytes:
        """See `Wire.reply`: before it ends a connection the server says why."""
        return (await self._messages(reader, ends=b"Z"))[0]

    async def _messages(self, reader: asyncio.StreamReader, *, ends: bytes) -> tuple[bytes, bool]:
        found = b""
        try:
            while True:
                header = await reader.readexactly(self._HEADER.size)
                kind, length = self._HEADER.unpack(header)
                found += header + await reader.readexactly(length - 4)
                if kind in ends:
                    return found, True
        except asyncio.IncompleteReadError:
            return found, False

    def command(self, request: bytes) -> Command | None:
        """See `Wire.command`."""
        if not self._started:
            self._started = True
            return Command("startup", "", {})
        # A portal of a cursor is described alone.
        at, text = 0, "DESCRIBE"
        while at < len(request):
            kind, length = self._HEADER.unpack_from(request, at)
            parts = request[at + self._HEADER.size : at + 1 + length].split(b"\0")
            at += 1 + length
            match kind:
                case b"Q":
                    text = parts[0].decode()
                case b"P":
                    text = self._statements[parts[0]] = parts[1].decode()
                case b"B":
                    text = self._statements[parts[1]]
        return Command(text.rpartition("; ")[2].split(maxsplit=1)[0], "", {"statement": text})

    def number(self, request: bytes) -> int:
        """See `Wire.number`."""
        self._sent += 1
        return self._sent

    def answered(self, reply: bytes) -> tuple[int, bool]:
        """See `Wire.answered`."""
        self._replied += 1
        return self._replied, False
