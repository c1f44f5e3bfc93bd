"""Small Scrapy projects that a test writes, and loads in its own process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SETTINGS = 'BOT_NAME = "shop"\nSPIDER_MODULES = ["{package}.spiders"]\n'
SPIDER = """\
import scrapy

class Books(scrapy.Spider):
    '''All books.'''

    name = "books"
    start_urls = ["https://shop.example/"]

    def parse(self, response):
        yield {"url": response.url}
"""


def write_project(
    folder: Path, files: dict[str, str] | None = None, *, settings: str = "", package: str = "shop"
) -> Path:
    """Write a project into *folder*, and return the folder.

    A key of *files* is a path in the package; *settings* come after the usual ones.
    """
    texts = {"__init__.py": "", "spiders/__init__.py": "", "spiders/books.py": SPIDER}
    texts |= {"settings.py": SETTINGS.format(package=package) + settings} | (files or {})
    for name, text in texts.items():
        path = folder / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "scrapy.cfg").write_text(f"[settings]\ndefault = {package}.settings\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, which is empty; its projects are unloaded at the end."""
    # Another test may have imported packages of these names, even those without a file.
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pages", "shop")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delenv("SCRAPY_SETTINGS_MODULE", raising=False)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    sys.path_importer_cache.clear()
