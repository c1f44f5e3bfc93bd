"""Pages of the manual: a tutorial, how-to pages, reference, explanation.

A page begins with a heading and a summary of one line, which the list of pages shows. A link to
another page is the page's file name.
"""

import difflib
from dataclasses import dataclass
from importlib import resources

from crawlcw.errors import UsageError

#: The names of the pages by their kind, in the order in which they are listed.
KINDS = {
    "Begin": ("installation", "tutorial"),
    "How to": (
        "site",
        "limits",
        "results",
        "resuming",
        "failures",
        "logins",
        "proxies",
        "files",
        "browser",
        "sitemaps",
        "revisits",
        "warc",
        "million",
        "machines",
        "testing",
        "watching",
        "tracking",
        "extending",
        "scrapy-projects",
        "scrapy",
        "crawlee",
    ),
    "Reference": (
        "spiders",
        "requests",
        "responses",
        "items",
        "content",
        "state",
        "layers",
        "settings",
        "commands",
        "dashboard",
        "workers",
        "deploying",
        "versions",
    ),
    "Explanation": (
        "guarantees",
        "words",
        "politeness",
        "performance",
    ),
    "API reference": (
        "api",
        "api-spiders",
        "api-responses",
        "api-runs",
        "api-settings",
        "api-errors",
        "api-layers",
        "api-testing",
        "api-tracking",
        "api-workers",
        "api-ledger",
        "api-queries",
    ),
}
NAMES = tuple(name for names in KINDS.values() for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of the manual."""

    name: str
    text: str  #: Markdown

    @property
    def title(self) -> str:
        """The heading of the page."""
        return self.text.partition("\n")[0].removeprefix("# ")

    @property
    def summary(self) -> str:
        """The summary line of the page."""
        return self.text.split("\n", 3)[2]


def page(name: str) -> Page:
    """Return the manual's page *name*, in capital or small letters, with or without `.md`.

    Raises `UsageError` if no page has this name; the message names the page with the nearest name.
    """
    key = name.lower().removesuffix(".md")
    if key not in NAMES:
        near = difflib.get_close_matches(key, NAMES, n=1)
        hint = f"the nearest is {near[0]!r}, and " if near else ""
        raise UsageError(f"the guide has no page {name!r}: {hint}`crawlcw guide` lists all pages")
    file = resources.files("crawlcw.guide") / f"{key}.md"
    return Page(name=key, text=file.read_text(encoding="utf-8"))


def all_pages() -> list[Page]:
    """Return all pages of the manual, in the order of `NAMES`."""
    return [page(name) for name in NAMES]
