"""Find and check a spider's file, and the files of its bases, without importing them."""

import ast
import sys
from pathlib import Path

from crawlcw.checking import requests, state
from crawlcw.checking.scrapy_names import Names
from crawlcw.checking.source import UNREADABLE, Class, Finding, Source, defined


def located(text: str, folder: Path) -> tuple[Path, str] | None:
    """Return the file and the class that *text* names, or None if there is no such file.

    *text* is `file.py`, `file.py:Class`, `module:Class`, or the name of a spider in *folder*. The
    class is `""` for `file.py`.
    """
    location, colon, class_name = text.rpartition(":") if ":" in text else (text, "", "")
    path = Path(location)
    if location.endswith(".py") or path.is_file():
        return (path, class_name) if path.is_file() else None
    if colon:
        module_path = _module_file(location)
        return None if module_path is None else (module_path, class_name)
    for path in sorted(folder.glob("*.py")):
        try:
            source = Source(path)
        except UNREADABLE:
            continue
        for candidate in source.classes:
            if text in _names(candidate):
                return path, candidate.node.name
    return None


def _module_file(module: str) -> Path | None:
    parts = Path(*module.split("."))
    for folder in (Path.cwd(), *map(Path, sys.path)):
        for path in (folder / parts.with_suffix(".py"), folder / parts / "__init__.py"):
            if path.is_file():
                return path
    return None


def _names(spider: Class) -> list[object]:
    return [
        statement.value.value
        for statement in spider.node.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        and isinstance(statement.value, ast.Constant)
        and "name" in defined(statement)
    ]


def check(path: Path) -> list[Finding]:
    """Return the findings in a file and in the files that define its spiders' base classes.

    Raises an exception of `source.UNREADABLE`, such as `OSError`, if a file cannot be read.
    """
    source = Source(path)
    spiders = [class_ for class_ in source.classes if class_.is_spider]
    sources = [source, *(class_.source for spider in spiders for class_ in spider.lineage)]
    for checked_source in dict.fromkeys(sources):
        Names(checked_source).check()
        requests.check(checked_source)
        requests.check_extras(checked_source)
        for spider in filter(lambda class_: class_.is_spider, checked_source.classes):
            requests.check_callbacks(spider)
            state.check(spider)
    return sorted({finding for checked_source in sources for finding in checked_source.findings})


def has_spider(path: Path) -> bool:
    """Return whether the names of classes and bases in a file show that it defines a spider."""
    return any(class_.is_spider for class_ in Source(path).classes)
