"""Find what in a Scrapy project cannot run on crawlcw, or runs in another way than in Scrapy.

The module reads the syntax trees of the project's own files, after these files were imported.
Other spiders of the project do not count.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crawlcw.checking import state
from crawlcw.checking.source import UNREADABLE, Finding, defined
from crawlcw.errors import SpiderError
from crawlcw.scrapy.components import path_of
from crawlcw.scrapy.import_errors import is_of_project, shown_path

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

_PIPELINES = "ITEM_PIPELINES"
#: Settings with paths of components.
_COMPONENTS = (_PIPELINES, "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS")
#: Settings with a part that crawlcw replaces: Scrapy's own part, and the way out.
_REPLACED = {
    "SCHEDULER": ("scrapy.core.scheduler.Scheduler", "the ledger is the scheduler"),
    "DOWNLOADER": ("scrapy.core.downloader.Downloader", "crawlcw sends the requests"),
}
_SPIDER_PRIORITY, _COMMAND_LINE_PRIORITY = 30, 40
#: Uses that cannot run, and the way out.
_SLOT = ('meta["download_slot"]', "use DOWNLOAD_SLOTS, because crawlcw queues requests by host")
_SHELL = ("inspect_response()", "use `crawlcw shell`, because a crawl has no terminal")
_TELNET = ("the Telnet console", "use `crawlcw dashboard`, because no console runs")
_SUSPICIOUS = re.compile(rb"download_slot|inspect_response|extensions\.telnet")
#: A mode of `open` that writes.
_WRITES = re.compile(r"[rbt]*[wxa+][rwxabt+]*")
_ATTRIBUTE = re.compile(r"self\.(\w+)")


def check(crawler: "Crawler", folder: Path, working_folder: Path) -> None:
    """Raise `SpiderError` for the first part of a project that cannot run; see `findings`."""
    for finding in findings(crawler, folder, working_folder):
        if finding.stops:
            position = f"{finding.path}, line {finding.line}" if finding.line else finding.path
            raise SpiderError(f"{position}: {finding.code}: {finding.replacement}")


def findings(crawler: "Crawler", folder: Path, working_folder: Path) -> list[Finding]:
    """Return what cannot run in the project in *folder* (`stops`), and what runs differently.

    Paths are relative to *working_folder*. Raises the error of a component that cannot be imported.
    """
    _components(crawler, _COMPONENTS)
    all_findings = [*_of_settings(crawler, folder), *_of_code(crawler, folder)]
    all_findings += own_files(crawler, folder)
    return [
        replace(finding, path=shown_path(finding.path, working_folder)) for finding in all_findings
    ]


def memory_state(crawler: "Crawler", folder: Path) -> list[str]:
    """Return the attributes that change while pages run, as `Class.attribute (file, line 1)`.

    The end of a process loses their values. *folder* is the project's folder.
    """
    changes: dict[str, None] = {}
    for component in (crawler.spidercls, *_components(crawler, _COMPONENTS)):
        for path, class_name in _sources(component, folder):
            with suppress(*UNREADABLE):
                for finding in state.check_class(Path(path), class_name):
                    (attribute,) = _ATTRIBUTE.findall(finding.code)
                    position = f"{shown_path(finding.path, folder)}, line {finding.line}"
                    changes[f"{component.__name__}.{attribute} ({position})"] = None
    return list(changes)


def own_files(crawler: "Crawler", folder: Path) -> list[Finding]:
    """Return the pipelines that write their own files, which a resumed crawl does not complete."""
    return [
        Finding(
            path=path,
            line=node.lineno,
            code=f"{class_name} writes its own file, which lacks items after a resume and with "
            "several processes",
            replacement="`crawlcw export` writes all items",
        )
        for pipeline in _components(crawler, [_PIPELINES])
        for path, class_name in _sources(pipeline, folder)
        for definition in _tree(path).body
        if isinstance(definition, ast.ClassDef) and definition.name == class_name
        for node in ast.walk(definition)
        if isinstance(node, ast.Call) and _opens_to_write(node)
    ]


def _of_settings(crawler: "Crawler", folder: Path) -> Iterator[Finding]:
    for name, (default, substitute) in _REPLACED.items():
        path = path_of(crawler.settings.get(name))
        if path != default:
            filename, line = _assigned(crawler, name, folder)
            stops = not path.startswith("scrapy_redis")
            way_out = f"{'remove it' if stops else 'it has no effect'}, because {substitute}"
            yield Finding(
                path=filename, line=line, code=f"{name} = {path}", replacement=way_out, stops=stops
            )


def _assigned(crawler: "Crawler", name: str, folder: Path) -> tuple[str, int]:
    """Return the file and the line that set Scrapy's setting *name*."""
    priority = crawler.settings.getpriority(name) or 0
    if priority >= _COMMAND_LINE_PRIORITY:
        return "-s", 0
    modules = [str(crawler.settings.get("SETTINGS_MODULE"))]
    if priority >= _SPIDER_PRIORITY:
        modules = [spider_class.__module__ for spider_class in crawler.spidercls.__mro__]
    for path in filter(None, (_file(module, folder) for module in modules)):
        for node in ast.walk(_tree(path)):
            match node:
                case ast.Assign() if name in defined(node):
                    return path, node.lineno
                case ast.Constant(value=value) if value == name:
                    return path, node.lineno
    return str(folder / "scrapy.cfg"), 0


def _of_code(crawler: "Crawler", folder: Path) -> Iterator[Finding]:
    for path, node in _nodes(crawler, folder):
        match node:
            case ast.Dict(keys=keys) if any(_is_slot(key) for key in keys):
                (code, way_out), line = _SLOT, node.lineno
            case ast.Subscript(slice=key, ctx=ast.Store()) if _is_slot(key):
                (code, way_out), line = _SLOT, node.lineno
            case ast.Call(func=ast.Name(id="inspect_response")):
                (code, way_out), line = _SHELL, node.lineno
            case ast.ImportFrom(module="scrapy.extensions.telnet"):
                (code, way_out), line = _TELNET, node.lineno
            case _:
                continue
        yield Finding(path=path, line=line, code=code, replacement=way_out, stops=True)


def _nodes(crawler: "Crawler", folder: Path) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes of the project's imported files, without the classes of other spiders."""
    import scrapy

    for name, module in list(sys.modules.items()):
        path = _file(name, folder)
        # Parse few files, because a project may have thousands of spiders.
        if path is None or not _SUSPICIOUS.search(Path(path).read_bytes()):
            continue
        for statement in _tree(path).body:
            value = vars(module).get(getattr(statement, "name", ""))
            is_spider = isinstance(value, type) and issubclass(value, scrapy.Spider)
            if not is_spider or value in crawler.spidercls.__mro__:
                yield from ((path, node) for node in ast.walk(statement))


def _is_slot(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == "download_slot"


def _components(crawler: "Crawler", settings: Iterable[str]) -> list[type]:
    """Return the classes of the components in *settings* that are on."""
    from scrapy.utils.misc import load_object

    components = [
        load_object(path)
        for setting in settings
        for path, position in crawler.settings.getdict(setting).items()
        if position is not None
    ]
    return [component for component in components if inspect.isclass(component)]


def _sources(component: type, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the source files in *folder* of a class and of its bases, with the classes' names."""
    for class_ in component.__mro__:
        if path := _file(class_.__module__, folder):
            yield path, class_.__name__


def _file(module: str, folder: Path) -> str | None:
    """Return the source file of an imported module if the module is the project's, or None."""
    path = getattr(sys.modules.get(module), "__file__", None) or ""
    return path if path.endswith(".py") and is_of_project(path, folder) else None


def _opens_to_write(call: ast.Call) -> bool:
    is_open = getattr(call.func, "id", getattr(call.func, "attr", "")) == "open"
    arguments = (*call.args, *(keyword.value for keyword in call.keywords))
    return is_open and any(
        isinstance(argument, ast.Constant) and _WRITES.fullmatch(str(argument.value))
        for argument in arguments
    )


def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_bytes(), path)
