"""Connections to the PostgreSQL server; a thread runs each operation, as package `sql` expects."""

import asyncio
import os
import re
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from itertools import count
from time import monotonic
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from anyio import to_thread
from psycopg import errors
from psycopg.adapt import Loader
from psycopg.pq import Format, TransactionStatus
from psycopg.types.numeric import Int8Dumper
from psycopg.types.string import StrDumperUnknown

from crawlcw.errors import LedgerConfigurationError, LedgerError, LedgerUnavailableError
from crawlcw.ledger.postgres.dialect import in_order, translated
from crawlcw.ledger.sql import database
from crawlcw.ledger.sql.database import Values

_P = ParamSpec("_P")
_T = TypeVar("_T")

_CONNECT_TIMEOUT = 5  #: maximum seconds to connect to the server
_REPLY_TIMEOUT = 60.0  #: maximum seconds in which the server must answer
#: The server ends a transaction and releases its row locks if the client sends nothing for these
#: seconds. TCP alone would notice only after hours that a client is gone.
_IDLE_TIMEOUT = 15.0
#: Maximum number of runs of a transaction; the server ends a run if there is a deadlock. Deadlocks
#: are rare, because all transactions lock rows in the order of their ids.
_MAX_TRIES = 5
_SETTINGS = (
    # Make the planner search in indexes, although a new table has no statistics.
    "SET enable_seqscan = off",
    "SET jit = off",
    # Set each parameter that our SQL relies on, because the database may have other defaults.
    "SET standard_conforming_strings = on",
    "SET default_transaction_isolation = 'read committed'",
    "SET lock_timeout = 0",
    f"SET statement_timeout = '{_REPLY_TIMEOUT:.0f}s'",
    f"SET idle_in_transaction_session_timeout = '{_IDLE_TIMEOUT:.0f}s'",
    (
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'"
    ),
)
#: Matches a control character in the form that `_TextDumper` writes.
_ESCAPED = re.compile("\1([\1\2])")
_MISCONFIGURED = (
    errors.InvalidAuthorizationSpecification,
    errors.InvalidCatalogName,
    errors.InsufficientPrivilege,
    errors.InvalidSchemaName,
    errors.UndefinedTable,
)
_UNAVAILABLE = (errors.ReadOnlySqlTransaction, errors.IdleInTransactionSessionTimeout)
#: Regex of a part of a URL, such as the user; special characters must be percent-encoded.
_TEXT = r"(?:[^\s:/?@%\[\]]|%[0-9A-Fa-f]{2})*"
_HOST = rf"(?:\[[^\s/?@\[\]]+\]|{_TEXT})(?::\d{{1,5}})?"
_URL = re.compile(
    rf"\w+://(?:{_TEXT}(?::{_TEXT})?@)?{_HOST}(?:,{_HOST})*(?:/{_TEXT})?"
    r"(?:\?(?:[^\s?@%]|%[0-9A-Fa-f]{2})*)?"
)
#: Advice for errors of a wrong URL, by a pattern of the message, because the errors have no code.
_ADVICE_BY_TEXT = {
    r'database "[^"]*" does not exist': "create it with createdb, or name another in the URL",
    r'role "[^"]*" does not exist': "name a user of the server in the URL",
    "authentication failed": "check the user and the password in the URL",
    "no password supplied": "give the user's password in the URL or in ~/.pgpass",
    "no pg_hba.conf entry|pg_hba.conf rejects": "let pg_hba.conf admit the user to the database",
    "invalid port number": "give a port below 65536",
}
#: Advice for errors that have an error code, by the class of psycopg's exception.
_ADVICE_BY_CODE = {
    errors.InsufficientPrivilege: "a crawl needs CREATE on the database, or to own the tables",
    errors.ReadOnlySqlTransaction: (
        "name the primary server in the URL; of several hosts, ?target_session_attrs=read-write "
        "chooses it"
    ),
}


class Row(tuple[Any, ...]):
    """A row of a result, whose values can be read by position and by column name."""

    __slots__ = ()
    names: Mapping[str, int] = {}

    def __getitem__(self, key: Any) -> Any:
        """Return the value of the column with a position or a name."""
        return tuple.__getitem__(self, self.names[key] if isinstance(key, str) else key)

    def keys(self) -> Iterable[str]:
        """Return the names of the row's columns."""
        return self.names.keys()


@lru_cache(maxsize=256)
def _row_type(names: tuple[str, ...]) -> type[Row]:
    numbers = {name: number for number, name in enumerate(names)}
    return type("Row", (Row,), {"__slots__": (), "names": numbers})


def _row_factory(cursor: Any) -> Callable[[Sequence[Any]], Row]:
    return _row_type(tuple(column.name for column in cursor.description or ()))


class _BoolDumper(Int8Dumper):
    """Sends booleans as 0 or 1, because the columns hold numbers, as in SQLite."""

    def dump(self, obj: Any) -> bytes:
        """Return the text of 0 or 1."""
        return b"1" if obj else b"0"


class _TextDumper(StrDumperUnknown):
    r"""Sends NUL as \1\1, because a text in PostgreSQL cannot contain NUL, and sends \1 as \1\2.

    Encoded texts sort like the original texts, and prefixes stay prefixes. JSON texts escape NUL.
    """

    def dump(self, obj: str) -> Any:
        """Return the text in the form that PostgreSQL accepts."""
        if "\0" in obj or "\1" in obj:
            obj = obj.replace("\1", "\1\2").replace("\0", "\1\1")
        return super().dump(obj)


class _TextLoader(Loader):
    """Decodes a text that `_TextDumper` has encoded."""

    format = Format.BINARY

    def load(self, data: Any) -> str:
        """Return the original text with its control characters."""
        text = str(data, "utf-8")
        return _ESCAPED.sub(_unescaped, text) if "\1" in text else text


def _unescaped(match: re.Match[str]) -> str:
    return "\0" if match[1] == "\1" else "\1"


class Database:
    """A connection that accepts SQLite's statements, see `sql.database.Database`."""

    def __init__(self, url: str) -> None:
        check(url)
        self.unsynced = False
        self.ledger_tables: Any = None
        self.is_set_up = False
        self._streams = count()
        self._db: Any = psycopg.connect(
            url,
            autocommit=True,
            row_factory=_row_factory,
            cursor_factory=psycopg.RawCursor,
            connect_timeout=_CONNECT_TIMEOUT,
            application_name="crawlcw",
            client_encoding="utf8",
        )
        self._db.server_cursor_factory = psycopg.RawServerCursor
        # Send all integers as one type, because the server makes a separate plan for each type.
        self._db.adapters.register_dumper(int, Int8Dumper)
        self._db.adapters.register_dumper(bool, _BoolDumper)
        self._db.adapters.register_dumper(str, _TextDumper)
        self._db.adapters.register_loader("text", _TextLoader)

    def set_up(self) -> None:
        """Set the session parameters of a new connection."""
        self._db.execute("; ".join(_SETTINGS))
        self.is_set_up = True

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return bool(self._db.info.transaction_status != TransactionStatus.IDLE)

    @property
    def is_broken(self) -> bool:
        """Whether the connection has ended, during a statement or between two statements."""
        if self._db.closed:
            return True
        # If the server sends data between two statements, it has ended the connection.
        poller = select.poll()
        poller.register(self._db.fileno(), select.POLLIN)
        return bool(poller.poll(0))

    def execute(self, statement: str, values: Values = (), /) -> Any:
        """See `sql.database.Database.execute`."""
        text, names = translated(statement)
        return self._db.execute(text, in_order(names, values), binary=True)

    def executemany(self, statement: str, rows: Iterable[Values], /) -> Any:
        """See `sql.database.Database.executemany`."""
        text, names = translated(statement)
        cursor = self._db.cursor()
        cursor.executemany(text, [in_order(names, values) for values in rows])
        return cursor

    def stream(self, statement: str, values: Values = (), /) -> Iterator[Row]:
        """See `sql.database.Database.stream`."""
        text, names = translated(statement)
        with nullcontext() if self.in_transaction else self.snapshot():
            cursor = self._db.cursor(f"stream {next(self._streams)}")
            try:
                cursor.execute(text, in_order(names, values), binary=True)
                for row in cursor:  # noqa: UP028  # `yield from` would close the cursor
                    yield row
            finally:
                # Ignore an error of `close`, because the caller has received all rows. If the
                # connection is broken, the next statement fails.
                with suppress(psycopg.Error):
                    cursor.close()
                # If the first `close` failed, the driver would later warn of an open cursor.
                cursor.close()

    @contextmanager
    def transaction(self, *, durable: bool = False, begun: bool = True) -> Iterator[None]:
        """See `sql.database.Database.transaction`."""
        self.unsynced = durable
        if begun:
            self._db.execute("BEGIN")
        try:
            yield
            if self.in_transaction:
                prefix = "" if self.unsynced else "SET LOCAL synchronous_commit = off; "
                self._db.execute(f"{prefix}COMMIT")
        except BaseException:
            if not self._db.closed and self.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def begin(self) -> None:
        """See `sql.database.Database.begin`."""
        if not self.in_transaction:
            self._db.execute("BEGIN")

    def restart(self) -> None:
        """See `sql.database.Database.restart`."""
        self._db.execute("ROLLBACK; BEGIN")

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """See `sql.database.Database.snapshot`."""
        self._db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            if not self._db.closed and self.in_transaction:
                self._db.execute("COMMIT")

    def cut(self) -> None:
        """Close the connection from any thread.

        If another thread waits for the server, the operation in that thread fails.
        """
        with suppress(OSError, psycopg.Error):
            duplicate = socket.socket(fileno=os.dup(self._db.fileno()))
            with duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)

    def refusal(self) -> str | None:
        """Return why the settings of the database prevent writes, or None if they do not."""
        encoding = self._db.info.parameter_status("server_encoding")
        if encoding != "UTF8":
            return (
                f"the encoding of the database is {encoding}, which lacks characters of pages: "
                "create another database with createdb -T template0 -E UTF8, and use that one"
            )
        if self._db.info.parameter_status("default_transaction_read_only") == "on":
            return (
                "default_transaction_read_only is on: set it to off for the user (ALTER ROLE) and "
                "for the database (ALTER DATABASE)"
            )
        return None

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


class Connection(database.Connection):
    """A connection to a PostgreSQL server for the event loop."""

    def __init__(self, url: str, *, begun: Callable[[Database], None] | None = None) -> None:
        """Create an unopened connection; each operation first calls the function *begun*."""
        super().__init__()
        self._url = url
        self._begun = begun
        #: Connection of the running operation, and the time when the operation began.
        self._at_work: tuple[Database, float] | None = None

    async def run(
        self,
        work: Callable[Concatenate[Database, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """See `sql.database.Connection.run`; an operation that lasts 60 s fails."""

        def locked() -> _T:
            with self._lock:
                try:
                    db = self._usable()
                    self._at_work = db, monotonic()
                    # Set `_at_work` before `set_up`, so that the timer can end `set_up` if the
                    # server does not answer.
                    if not db.is_set_up:
                        db.set_up()
                    if self._begun is not None:
                        self._begun(db)
                    return _run_work(db, work, *args, **kwargs)
                except psycopg.Error as error:
                    if isinstance(error, errors.ReadOnlySqlTransaction) and self._db.refusal():
                        # A standby server counts as unavailable, because a failover may make it
                        # writable.
                        raise LedgerConfigurationError(
                            f"PostgreSQL: {self._db.refusal()}"
                        ) from None
                    raise translated_error(error) from error
                finally:
                    self._at_work = None

        with self._cutting_late():
            return await to_thread.run_sync(locked, limiter=self._limiter)

    async def close(self) -> None:
        """See `sql.database.Connection.close`."""
        with self._cutting_late():
            await super().close()

    @contextmanager
    def _cutting_late(self) -> Iterator[None]:
        """During the block, end any operation that has lasted 60 s.

        The limit also applies after a cancellation, because the thread of the operation continues.
        """
        loop = asyncio.get_running_loop()
        timer: asyncio.TimerHandle

        def cut_late() -> None:
            nonlocal timer
            delay = _REPLY_TIMEOUT
            if operation := self._at_work:
                db, started_at = operation
                delay += started_at - monotonic()
                if delay <= 0:
                    db.cut()
                    delay = _REPLY_TIMEOUT
            timer = loop.call_later(delay, cut_late)

        cut_late()
        try:
            yield
        finally:
            timer.cancel()

    def _usable(self) -> Database:
        if self._closed:
            raise LedgerUnavailableError("The ledger was closed.")
        if self._db is not None and self._db.is_broken:
            self._db.close()
            self._db = None
        if self._db is None:
            self._db = Database(self._url)
        db: Database = self._db
        return db


def _run_work(
    db: Database, work: Callable[Concatenate[Database, _P], _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    for _ in range(_MAX_TRIES):
        try:
            return work(db, *args, **kwargs)
        except (errors.DeadlockDetected, errors.SerializationFailure):
            # Repeat the transaction, because the server has rolled it back.
            continue
    return work(db, *args, **kwargs)


def check(url: str) -> None:
    """Raise `LedgerConfigurationError` for a malformed URL.

    Call `check` before libpq reads the URL, because libpq's messages repeat an invalid host, port
    or option. In a malformed URL, the repeated text may be a part of the password.
    """
    if not _URL.fullmatch(url):
        raise LedgerConfigurationError(
            "write postgresql://user:password@host:port/database, with / : ? @ % in the user or "
            "the password percent-encoded"
        )


def translated_error(error: psycopg.Error) -> LedgerError:
    """Return crawlcw's error for an error of psycopg; its message contains no password."""
    message = f"PostgreSQL: {_sentence(error)}"
    if isinstance(error, _MISCONFIGURED):
        return LedgerConfigurationError(message)
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        return LedgerConfigurationError(message)
    if isinstance(error, psycopg.OperationalError):
        if error.sqlstate is None and _advice(error):
            return LedgerConfigurationError(message)
        return LedgerUnavailableError(message)
    if isinstance(error, (psycopg.InterfaceError, *_UNAVAILABLE)):
        return LedgerUnavailableError(message)
    return LedgerError(message)


def _sentence(error: psycopg.Error) -> str:
    """Return the error's message as one line, followed by advice if there is any."""
    message = error.diag.message_primary or str(error) or type(error).__name__
    # Drop the lines that begin with a tab, in which libpq suggests possible causes.
    lines = [line.strip() for line in message.splitlines() if not line.startswith("\t")]
    message = " ".join(lines).rstrip(".")
    advice = _advice(error)
    return f"{message}: {advice}." if advice else f"{message}."


def _advice(error: psycopg.Error) -> str | None:
    if error.sqlstate is not None:
        return next(
            (advice for kind, advice in _ADVICE_BY_CODE.items() if isinstance(error, kind)), None
        )
    return next(
        (advice for regex, advice in _ADVICE_BY_TEXT.items() if re.search(regex, str(error))), None
    )
