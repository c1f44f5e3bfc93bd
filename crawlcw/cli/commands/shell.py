"""`crawlcw shell`: a Python shell with a fetched page."""

import asyncio
import code
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import click

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.spider import Spider
from crawlcw.cli import options, trying
from crawlcw.cli.terminal import logs
from crawlcw.cli.trying import Trial
from crawlcw.errors import FetchError, SpiderError, UsageError
from crawlcw.ledger.protocol import Ledger
from crawlcw.model.sanitize import printable
from crawlcw.model.transitions import Failed

_HELP = """\
response          the page; response.css(...), response.css_first(...), response.text, ...
fetch(url)        fetch another page; takes the arguments of Request
parse(callback)   the items and requests that the spider's callback yields for the page
request, spider   the page's request, and the spider
"""


@click.command("shell")
@click.argument("url", required=False)
@click.option("--spider", metavar="SPIDER", help="Use the settings and callbacks of this spider.")
@options.arguments_option
@options.settings_option
@logs.log_option
def command(
    *,
    url: str | None,
    spider: str | None,
    arguments: tuple[str, ...],
    assignments: tuple[str, ...],
) -> None:
    """Open a Python shell with URL as `response`, to try selectors.

    The shell is IPython if IPython is installed. `fetch(url)` and `parse(callback)` work in the
    shell. Nothing is recorded.
    """
    loaded_spider = trying.spider_or_any(spider, arguments)
    # Use asyncio's loop, not uvloop's, because users at the prompt expect Python's own loop.
    with asyncio.Runner() as runner, _Session(runner, loaded_spider, assignments) as session:
        if url is not None:
            session.fetch(url)
        _interact(session)


class _Session:
    """The names that the user can use at the prompt."""

    def __init__(self, runner: asyncio.Runner, spider: Spider, assignments: Sequence[str]) -> None:
        self._runner = runner
        self._spider = spider
        self._settings = options.settings_of(spider, assignments)
        self._open = AsyncExitStack()
        self._open_sessions = AsyncExitStack()
        self._session_ledger: Ledger | None = None
        self._trial: Trial | None = None
        self.names: dict[str, Any] = {
            "spider": spider,
            "Request": Request,
            "response": None,
            "request": None,
            "fetch": self.fetch,
            "parse": self.parse,
        }

    def __enter__(self) -> "_Session":
        self._runner.run(self._opened())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._open.aclose())
        self._runner.run(self._open_sessions.aclose())

    async def _opened(self) -> None:
        # Keep the sessions open, so that one login serves all pages of the shell.
        self._session_ledger = await self._open_sessions.enter_async_context(
            trying.open_sessions(self._spider)
        )

    def fetch(self, url: str, **options: Any) -> Response | None:
        """Fetch a page, set `response` to it, and print a summary to stderr."""
        return self._runner.run(self._fetch(Request(url, **options)))

    def parse(self, callback: str = "parse") -> list[dict[str, Any] | Request] | None:
        """Return the items and requests that a callback yields for `response`."""
        response: Response | None = self.names["response"]
        if response is None or self._trial is None:
            click.echo("fetch a page first", err=True)
            return None
        response.request.callback = callback
        try:
            produced = self._runner.run(self._trial.parse(response))
        except SpiderError as error:
            click.echo(f"crawlcw: {printable(error)}", err=True)
            return None
        if isinstance(produced, Failed):
            click.echo(f"crawlcw: {callback} failed: {printable(produced.message)}", err=True)
            return None
        return [*produced.items, *(Request.of(task) for task in produced.tasks)]

    async def _fetch(self, request: Request) -> Response | None:
        try:
            # Make a downloader for each URL; it permits a private address for one URL.
            await self._open.aclose()
            self._trial = await self._open.enter_async_context(
                trying.open_trial(
                    self._spider, request.url, self._settings, sessions=self._session_ledger
                )
            )
            response = await self._trial.fetch(request)
        except (FetchError, UsageError) as error:
            click.echo(f"crawlcw: {printable(error, limit=400)}", err=True)
            return None
        click.echo(trying.head_of(response), err=True)
        self.names |= {"response": response, "request": request}
        return response


def _interact(session: _Session) -> None:
    try:
        from IPython import start_ipython
    except ImportError:
        start_ipython = None
    click.echo(_HELP, err=True)
    if start_ipython is not None and sys.stdin.isatty():
        start_ipython(argv=["--no-banner", "--no-confirm-exit"], user_ns=session.names)
    else:
        code.interact(banner="", local=session.names, exitmsg="")
