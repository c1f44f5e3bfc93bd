"""`crawlcw crawl`: crawl a site without a spider file, to Markdown files or to items."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from crawlcw.api.spider import Spider, is_name
from crawlcw.cli import options
from crawlcw.cli.running import RunOptions, crawl, run_options
from crawlcw.errors import FetchError, SpiderError, UsageError
from crawlcw.items.specification import Extraction
from crawlcw.model import urls
from crawlcw.site.folder import MarkdownFolder
from crawlcw.site.scope import SiteScope, site_name
from crawlcw.site.spider import SiteSpider


@click.command("crawl")
@click.argument("url")
@click.option(
    "--markdown",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write each page to a Markdown file in DIR, with its front matter.",
)
@click.option("--whole", is_flag=True, help="Convert whole pages, not only their main content.")
@click.option("--article", is_flag=True, help="Record the article of each page: author, text ...")
@click.option(
    "--items",
    "specification",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Record the items that FILE selects, a specification in JSON.",
)
@click.option(
    "--include",
    multiple=True,
    metavar="GLOB",
    help="Request only paths that match GLOB, such as '/blog/*'. May be repeated.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="GLOB",
    help="Request no path that matches GLOB, such as '*/print/*'. May be repeated.",
)
@options.number_option("--max-depth", minimum=0, about="Follow at most N links from URL.")
@click.option("--no-lists", is_flag=True, help="Read no sitemap and no llms.txt.")
@click.option("--name", metavar="NAME", help="Name of the crawl; by default made from URL.")
@run_options
def command(
    run: RunOptions,
    *,
    url: str,
    folder: Path | None,
    whole: bool,
    article: bool,
    specification: Path | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    max_depth: int | None,
    no_lists: bool,
    name: str | None,
) -> int:
    """Crawl the site at URL without a spider file, or resume an earlier crawl.

    A URL without a path means the whole host. A URL with a path means the pages below it:
    https://example.com/docs/ has no page of https://example.com/blog/. If URL redirects to another
    host, the crawl is about that host. The command reads the site's sitemaps and its llms.txt, if
    they exist, for further pages of the site.

    In a GLOB, * stands for any characters, and the GLOB must match the whole path. A GLOB with ? is
    compared with the path and its query. URL itself is always requested.

    The crawl records an item for each page of HTML: url, title, description and language, or what
    --markdown, --article or --items adds. Files of other types are skipped. With --markdown the
    name of a file depends only on the page's URL. A later visit of a page changes its file only if
    the page's content has changed.

    The name of the crawl is made from URL: docs-example-com for https://docs.example.com. Other
    commands take this name, or URL: `crawlcw stats docs-example-com`. The same command resumes the
    crawl later. For all other options, exit codes and signals see `crawlcw run --help`.
    """

    def load(assignments: Sequence[str]) -> tuple[Spider, Sequence[str]]:
        start = _start(url)
        spider_class = type(
            SiteSpider.__name__,
            (SiteSpider,),
            {"name": name or site_name(start), "__module__": SiteSpider.__module__},
        )
        if name is not None and not is_name(name):
            raise UsageError(
                f"--name {name!r}: a name is a letter followed by up to 59 letters, digits, - and _"
            )
        spider: Spider = spider_class(
            SiteScope.of(start, include=include, exclude=exclude),
            with_lists=not no_lists,
            is_article=article,
            specification=None if specification is None else _specification(specification),
            folder=None if folder is None else MarkdownFolder(folder),
            main=not whole,
        )
        depth = [] if max_depth is None else [f"max_depth={max_depth}"]
        return spider, [*assignments, *depth]

    if whole and folder is None:
        raise UsageError("--whole is about Markdown files: add --markdown DIR")
    return crawl(load, run)


def _start(text: str) -> str:
    """Return the start URL that the user means; raises `UsageError`."""
    url = text if "://" in text else f"https://{text}"
    try:
        urls.locate(url)
    except FetchError as error:
        # The error shows the URL without its password.
        raise UsageError(f"not a URL to crawl: {error.message}") from None
    return url


def _specification(path: Path) -> Any:
    """Return the specification of items in a file; raises `UsageError`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        Extraction.of(document)
    except OSError as error:
        raise UsageError(f"--items: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--items: {path} is not JSON: {error}") from None
    except SpiderError as error:
        raise UsageError(f"--items: {path}: {error}") from None
    return document
