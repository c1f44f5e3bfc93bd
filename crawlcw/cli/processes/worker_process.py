"""Start and end a worker process for the supervisor, and receive its states and output."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TextIO

import anyio

from crawlcw.cli.processes.channel import Lines, WorkerState, code_of
from crawlcw.cli.starting import Process, start
from crawlcw.model.clock import Silence
from crawlcw.model.counters import FinishReason

#: Seconds to wait for the last lines of an ended process.
_LAST_LINES = 2.0
#: Seconds between two checks for silent workers.
POLL_EVERY = 0.5


class WorkerProcess:
    """A worker process, with the same arguments as the supervisor's process.

    The terminal's signals do not reach a worker process. The worker stops gracefully when the
    supervisor ends for any reason.
    """

    def __init__(
        self, number: int = 1, *, on_state: Callable[[WorkerState], None] = lambda _: None
    ) -> None:
        """*number* is the worker's number; *on_state* is called with each state that it sends."""
        self.number = number
        self.state = WorkerState()  #: the last received state
        self._on_state = on_state
        self.exit_code: int | None = None  #: exit code that the worker sent, or None
        self.was_terminated = False  #: whether this process has sent a signal to end the worker
        self._process: subprocess.Popen[bytes] | None = None
        self._states = Lines(self._receive)
        # Look up `sys.stdout` and `sys.stderr` at each line, because a live display replaces them.
        self._stdout = Lines(lambda line: _print(line, sys.stdout))
        self._stderr = Lines(lambda line: _print(line, sys.stderr))
        self._orders: socket.socket  #: socket for orders, set by `start`
        self._connections: list[asyncio.BaseTransport | socket.socket] = []
        self._silence: Silence | None = None  #: None: no state yet
        self._has_new_state = False  #: whether the worker has sent a state since the last `silent`

    @property
    def pid(self) -> int:
        """The process id."""
        return self._running_process.pid

    async def start(
        self, *, share: Mapping[str, int], started_at: datetime, process: Process | None = None
    ) -> None:
        """Start a worker process, or use the waiting *process*.

        *share* has the worker's part of each limit, by the setting's name. *started_at* is when the
        supervisor started, by the ledger's clock.

        Raises `OSError` if no process can be created.
        """
        process = process or start()
        self._process = process.popen
        with suppress(OSError):  # the process may have ended already
            process.send_arguments(share, started_at=started_at)
        self._orders = process.channel.dup()
        self._orders.setblocking(False)
        self._connections.append(self._orders)
        loop = asyncio.get_running_loop()
        states, _ = await loop.create_unix_connection(lambda: self._states, sock=process.channel)
        self._connections.append(states)
        stdout, _ = await loop.connect_read_pipe(lambda: self._stdout, process.stdout_reader)
        self._connections.append(stdout)
        stderr, _ = await loop.connect_read_pipe(lambda: self._stderr, process.stderr_reader)
        self._connections.append(stderr)

    def send_order(self, order: FinishReason, *, grace: timedelta) -> None:
        """Order the worker to end within *grace*, unless the worker has ended. Idempotent."""
        # Ignore the error of a process that has ended. Send the order by the socket. A transport of
        # asyncio would close after a failed write, and lose the worker's last lines.
        with suppress(OSError):
            self._orders.send(b"%s %g\n" % (order.encode(), grace.total_seconds()))

    def terminate(self, signal_number: signal.Signals) -> None:
        """Send a signal to end the worker, unless the worker has ended."""
        self.was_terminated = True
        with suppress(ProcessLookupError):
            self._running_process.send_signal(signal_number)

    def signal_group(self, signal_number: signal.Signals) -> None:
        """Send a signal to the worker and its child processes, unless the worker has ended."""
        # Until this process calls wait(2), the system gives no other process the worker's group id.
        if self._running_process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal_number)

    async def wait(self) -> int:
        """Wait for the end of the process; return its exit code, or -N if signal N ended it."""
        code = await end_of(self._running_process)
        # Limit the wait, because a child process of the spider may keep the pipes open for ever.
        with anyio.move_on_after(_LAST_LINES):
            for lines in (self._states, self._stdout, self._stderr):
                await lines.closed.wait()
        return code

    def close(self) -> None:
        """Close the connection, so that a running worker stops gracefully."""
        for transport in self._connections:
            transport.close()

    @property
    def _running_process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "no process was started"
        return self._process

    def end_code(self) -> int | None:
        """Return the exit code of a worker that has ended, or None if the worker crashed."""
        reason = self.state.finish_reason
        if self.exit_code is None and self.was_terminated and reason is not None:
            # The worker had finished the crawl, but this process ended the worker, because the
            # spider's code still ran.
            return code_of(reason)
        return self.exit_code

    @property
    def has_reported(self) -> bool:
        """Whether the worker has sent a state."""
        return self._silence is not None

    def silent(self) -> float:
        """Return the seconds since the last state; call this method every `POLL_EVERY` seconds."""
        now, has_new_state = time.monotonic(), self._has_new_state
        if self._silence is None:
            self._silence = Silence(now=now, interval=POLL_EVERY) if has_new_state else None
            return 0.0
        self._has_new_state = False
        return self._silence.record(now, has_sign=has_new_state)

    def _receive(self, line: bytes) -> None:
        # Ignore half a state, which a killed worker may have sent.
        with suppress(ValueError):
            fields = json.loads(line)
            if "exit" in fields:
                self.exit_code = fields["exit"]
            else:
                self.state = WorkerState.of(fields)
                self._has_new_state = True
                self._on_state(self.state)


async def end_of(process: "subprocess.Popen[bytes]") -> int:
    """Wait for the end of *process*; return its exit code."""
    # Wait in a thread, because an event loop that started after *process* may not watch it.
    return await anyio.to_thread.run_sync(
        process.wait, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
    )


def _print(line: bytes, stream: TextIO) -> None:
    # Ignore an error of the output, because a closed output must not end the crawl.
    with suppress(OSError, ValueError):
        stream.write(line.decode(errors="backslashreplace") + "\n")
        stream.flush()
