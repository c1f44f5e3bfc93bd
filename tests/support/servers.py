"""Servers of tracked tasks, in this process and in processes of their own, and a client."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import aiohttp

from crawlcw.server.serving import serving
from crawlcw.tracking import Tracker

TOKEN = "let-me-in"


@dataclass(frozen=True, slots=True)
class Client:
    """Client of one server."""

    http: aiohttp.ClientSession
    address: str

    async def get(self, path: str, **options: Any) -> tuple[int, Any]:
        async with self.http.get(self.address + path, **options) as response:
            return response.status, await response.json()

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        async with self.http.post(self.address + path, json=body) as response:
            return response.status, await response.json()

    async def send(self, path: str, data: Any, **headers: str) -> tuple[int, Any]:
        """Post any body, with the content type of JSON unless *headers* has another one."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"Content-Type": "application/json"} | named
        async with self.http.post(self.address + path, data=data, headers=given) as response:
            return response.status, await response.json()


@asynccontextmanager
async def served(
    url: str, *, token: str | None = None, max_connections: int = 256, **policy: Any
) -> AsyncIterator[tuple[Client, Tracker]]:
    """Serve the use case `orders` of a ledger in this process."""
    give_up = timedelta(0)
    async with (
        Tracker.open(url, "orders", ledger_give_up=give_up, **policy) as tracker,
        serving(
            tracker, host="127.0.0.1", port=0, token=token, max_connections=max_connections
        ) as address,
        aiohttp.ClientSession() as http,
    ):
        yield Client(http, address), tracker


def impatient(*, headers: float, body: float, idle: float) -> tuple[str, ...]:
    """Return Python's arguments for a `crawlcw` with other deadlines, in seconds."""
    code = (
        "from crawlcw.server import serving\n"
        "from crawlcw.server.connections import Deadlines\n"
        f"serving.DEADLINES = Deadlines(headers={headers}, body={body}, idle={idle})\n"
        "from crawlcw.cli.main import main\n"
        "main()"
    )
    return ("-c", code)


class ServerProcess:
    """`crawlcw serve`, or another command that serves, on a port of its own."""

    def __init__(
        self,
        ended: ExitStack,
        url: str,
        *options: str,
        use_case: str = "orders",
        command: str = "serve",
        program: tuple[str, ...] = ("-m", "crawlcw"),
        files: int | None = None,
        **environment: str,
    ) -> None:
        """Start *program* with a limit of *files* open files, or with that of this process."""
        limit = [] if files is None else ["prlimit", f"--nofile={files}"]
        self.process = subprocess.Popen(
            [*limit, sys.executable, *program, command, use_case, "--ledger", url, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        ended.callback(self._end)
        self.address = ""

    def ready(self) -> str:
        """Wait until the server is ready; return its first line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.address = next((word for word in line.split() if word.startswith("http")), "")
        return line

    def stop(self, signal: int) -> tuple[int, str, str]:
        """Send a signal; return the exit code and the output."""
        self.process.send_signal(signal)
        return self.result()

    def result(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err

    def _end(self) -> None:
        self.process.kill()
        self.process.communicate()


def error_of(answer: tuple[int, Any]) -> str:
    """Return the message of a refusal; check that its body has no other field."""
    assert answer[1].keys() == {"error"}
    sentence: str = answer[1]["error"]
    assert sentence
    assert "\n" not in json.dumps(sentence)
    return sentence
