"""`crawlcw fetch`: fetch one page as a crawl would."""

import sys
from pathlib import Path

import click

from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.cli import loop, options, trying
from crawlcw.cli.exit_codes import NOT_WELL, OK
from crawlcw.cli.numbers import counted
from crawlcw.cli.terminal import logs
from crawlcw.content.page import page_markdown
from crawlcw.errors import FetchError, UsageError
from crawlcw.model.sanitize import printable


@click.command("fetch")
@click.argument("url")
@click.option("--spider", metavar="SPIDER", help="Use the settings of this spider.")
@options.arguments_option
@options.settings_option
@click.option("--headers", is_flag=True, help="Print the response headers instead of the body.")
@click.option("--markdown", is_flag=True, help="Print the main content as Markdown.")
@click.option("--whole", is_flag=True, help="Convert the whole page, not only its main content.")
@click.option(
    "-o",
    "output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to FILE and replace it; a FILE that ends in .md gets Markdown.",
)
@logs.log_option
def command(
    *,
    url: str,
    spider: str | None,
    arguments: tuple[str, ...],
    assignments: tuple[str, ...],
    headers: bool,
    markdown: bool,
    whole: bool,
    output: Path | None,
) -> int:
    """Fetch URL as a crawl does, and print the body or its Markdown.

    The request obeys robots.txt and follows redirects. The command decodes the body, cuts it after
    `max_body` bytes, and writes a line about the response to stderr. Nothing is recorded.

    --markdown leaves out text that the page hides, and the line to stderr counts the hidden parts.

    The exit code is 3 if there is no response, if its status is not between 200 and 299, or if a
    page for --markdown is not HTML.
    """
    markdown = markdown or (output is not None and output.suffix == ".md")
    if headers and (markdown or output is not None):
        raise UsageError("--headers prints no page: leave out --markdown and -o")
    if whole and not markdown:
        raise UsageError("--whole is about Markdown: add --markdown")
    loaded_spider = trying.spider_or_any(spider, arguments)
    settings = options.settings_of(loaded_spider, assignments)
    return loop.run(
        _fetch(
            loaded_spider,
            url,
            settings,
            headers=headers,
            main=not whole if markdown else None,
            output=output,
        )
    )


async def _fetch(
    spider: Spider,
    url: str,
    settings: Settings,
    *,
    headers: bool,
    main: bool | None,
    output: Path | None,
) -> int:
    """Fetch and print a page; *main* is None for its body, or chooses what becomes Markdown."""
    async with trying.open_trial(spider, url, settings) as trial:
        try:
            response = await trial.fetch(Request(url))
        except FetchError as error:
            return _fail(error)
    click.echo(trying.head_of(response), err=True)
    if headers:
        for name, value in response.headers.items():
            click.echo(printable(f"{name}: {value}", limit=2000))
    elif main is None:
        _write(response.body, response.text, output)
    else:
        if not response.is_html:
            kind = response.headers.get("content-type", "no markup")
            return _fail(f"--markdown needs an HTML page, and this response is {kind}")
        try:
            markdown = page_markdown(response, main=main)
        except FetchError as error:  # the page would hang the parser
            return _fail(error)
        if markdown.hidden:
            click.echo(f"left out: {counted(markdown.hidden, 'hidden part')}", err=True)
        _write(markdown.text.encode(errors="replace"), markdown.text, output)
    return OK if 200 <= response.status < 300 else NOT_WELL


def _fail(message: object) -> int:
    click.echo(f"crawlcw: {printable(message, limit=400)}", err=True)
    return NOT_WELL


def _write(content: bytes, text: str, output: Path | None) -> None:
    if output is not None:
        try:
            output.write_bytes(content)
        except OSError as error:
            raise UsageError(f"cannot write {output}: {error.strerror}") from None
    elif sys.stdout.isatty():
        # Escape the text, because a page must not send control sequences to the terminal.
        for line in text.removesuffix("\n").split("\n"):
            click.echo(printable(line, limit=len(line) + 1))
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
