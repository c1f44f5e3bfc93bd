"""Find what cannot run in a Scrapy project, before the first request."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


def check(crawler: "Crawler", folder: Path) -> None:
    """Raise `SpiderError` if the project of *crawler*, in *folder*, cannot run."""


def memory_state(crawler: "Crawler") -> list[str]:  # noqa: ARG001
    """Return the attributes that the project changes while pages run, each with its line."""
    return []
