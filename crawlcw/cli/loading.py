"""Load the spider or use case that the user names, from ./spiders, a file or a module.

An error in the user's file becomes one sentence with the file, the line and the error. The module
loads only files that the user names, or the files in ./spiders.
"""

import difflib
import importlib
import importlib.util
import inspect
import logging
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

from crawlcw.api.spider import Spider, check, is_name
from crawlcw.cli import scrapy_references
from crawlcw.cli.options import command_line
from crawlcw.errors import SpiderError, UsageError
from crawlcw.model.sanitize import printable
from crawlcw.site.scope import site_name

if TYPE_CHECKING:
    from crawlcw.tracking import UseCase

logger = logging.getLogger(__name__)

FOLDER = scrapy_references.SPIDERS_FOLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSpider:
    """A spider in `./spiders`."""

    name: str
    spider_class: type[Spider]
    path: Path

    @property
    def reference(self) -> str:
        """The text that names exactly this spider on the command line, such as `file.py:Class`."""
        return f"{self.path}:{self.spider_class.__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenFile:
    """A file in `./spiders`, or a Scrapy project, that cannot be loaded."""

    path: Path
    error: UsageError


def find(reference: str, scrapy_settings: Sequence[str] = ()) -> type[Spider]:
    """Return the spider that a name, `file.py`, `file.py:Class` or `module:Class` refers to.

    A spider of a Scrapy project is `FOLDER:SPIDER` or, inside the project, its name;
    *scrapy_settings* are `NAME=VALUE` texts for this project. Raises `SpiderError` with a list of
    the available spiders.
    """
    if (scrapy_target := scrapy_references.target_of(reference)) is not None:
        from crawlcw.scrapy import project  # imported late: other spiders need no Scrapy

        folder, name = scrapy_target
        crawler = project.crawler_of(folder, name, scrapy_settings)
        from crawlcw.scrapy import spider  # it imports Scrapy, which may be missing

        return spider.adapted(crawler, folder.resolve())
    if (target := _load_named(reference)) is not None:
        return _in_module(*target)
    if is_name(reference):
        return _by_name(reference)
    raise SpiderError(
        f"{reference!r} names no spider: give a name from ./{FOLDER}, a file (spider.py or "
        "spider.py:Class), or package.module:Class"
    )


def find_use_case(reference: str) -> "UseCase":
    """Return the use case *reference*: `file.py`, `file.py:object` or `module:object`.

    Raises `UsageError` with a list of the available use cases.
    """
    from crawlcw.tracking import UseCase  # imported late: crawls do not need it

    if (target := _load_named(reference)) is None:
        raise UsageError(
            f"{reference!r} names no use case: give a file (orders.py or orders.py:orders), or "
            "package.module:object"
        )
    module, name, path = target
    use_cases = {
        variable: value for variable, value in vars(module).items() if isinstance(value, UseCase)
    }
    names = ", ".join(use_cases)
    if name:
        if name in use_cases:
            return use_cases[name]
        hint = f"its use cases: {names}" if names else "it has none"
        raise UsageError(f"{path} has no use case {name!r}; {hint}")
    if not use_cases:
        raise UsageError(f"{path} has no use case: write `orders = crawlcw.tracking.UseCase(...)`")
    if len(use_cases) > 1:
        raise UsageError(
            f"{path} has several use cases ({names}): choose one, such as "
            f"{path}:{next(iter(use_cases))}"
        )
    return next(iter(use_cases.values()))


def _load_named(text: str) -> tuple[ModuleType, str, str] | None:
    """Return the module that *text* names, the object's name, and the module's path or name.

    The object's name is "" if *text* is only a path. Return None if *text* is neither a path nor
    `module:object`. A path to a missing file raises `SpiderError`.
    """
    path, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
    if path.endswith(".py") or "/" in path or _is_file(Path(path)):
        return load_file(Path(path)), name, path
    return (load_module(path), name, path) if colon else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise SpiderError(f"{path} cannot be read: {error.strerror}") from None


def name_of(text: str) -> str:
    """Return *text* if it can be a name; otherwise find the spider, and return its name.

    A spider of a Scrapy project has a name without loading the project. The URL of a start stands
    for the name of its `crawlcw crawl`.
    """
    if is_name(text):
        return text
    if (name := site_name(text)) is not None and not _is_file(Path(text)):
        return name
    if (scrapy_target := scrapy_references.target_of(text)) is not None:
        from crawlcw.scrapy import project

        return project.name_of(scrapy_target[1])
    return find(text).name


def listed(folder: Path = FOLDER) -> Iterator[ListedSpider | BrokenFile]:
    """Yield the spiders of a folder, and the files that cannot be loaded.

    Inside a Scrapy project, yield only the files that use crawlcw. Raises `SpiderError` for a
    folder that cannot be read.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".py")
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise SpiderError(f"./{folder} cannot be read: {error.strerror}") from None
    in_project = scrapy_references.project_folder() is not None
    for path in paths:
        if path.name.startswith("_") or (in_project and not scrapy_references.is_of_crawlcw(path)):
            continue
        try:
            spider_classes = _spiders(load_file(path))
        except SpiderError as error:
            yield BrokenFile(path=path, error=error)
        else:
            for spider_class in spider_classes:
                yield ListedSpider(name=spider_class.name, spider_class=spider_class, path=path)


def load(
    reference: str, arguments: Iterable[str], assignments: Sequence[str]
) -> tuple[Spider, list[str]]:
    """Return the spider that *reference* names, and the *assignments* that are crawlcw's settings.

    In a Scrapy project, the assignments with names in capitals are Scrapy's settings. See `find`
    and `make` for the errors.
    """
    scrapy_settings = []
    if scrapy_references.target_of(reference) is not None:
        scrapy_settings = scrapy_references.of_scrapy(assignments)
    spider = make(find(reference, scrapy_settings), arguments)
    return spider, [text for text in assignments if text not in scrapy_settings]


def make(spider_class: type[Spider], arguments: Iterable[str]) -> Spider:
    """Return a spider that gets the `key=value` *arguments*; raises `UsageError`."""
    keyword_arguments = _arguments(arguments)
    try:
        inspect.signature(spider_class).bind(**keyword_arguments)
    except TypeError as error:
        raise SpiderError(f"{spider_class.__name__} does not take these -a: {error}") from None
    try:
        spider = spider_class(**keyword_arguments)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise _spider_error(
            inspect.getsourcefile(spider_class) or spider_class.__module__, error
        ) from error
    check(spider)
    return spider


def _arguments(texts: Iterable[str]) -> Mapping[str, str]:
    arguments = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"-a takes NAME=VALUE, not {text!r}")
        arguments[name] = value
    return arguments


def _by_name(name: str) -> type[Spider]:
    if not FOLDER.is_dir():
        raise SpiderError(
            f"there is no spider {name!r}, because there is no folder ./{FOLDER} here: "
            "give a file (spider.py) or package.module:Class"
        )
    entries = list(listed())
    spiders = [entry for entry in entries if isinstance(entry, ListedSpider)]
    matching_spiders = [entry for entry in spiders if entry.name == name]
    if len(matching_spiders) > 1:
        locations = ", ".join(entry.reference for entry in matching_spiders)
        raise SpiderError(f"several spiders are named {name!r}: choose one of {locations}")
    if matching_spiders:
        return matching_spiders[0].spider_class
    broken_files = [entry for entry in entries if isinstance(entry, BrokenFile)]
    for entry in broken_files:
        # The spider in a broken file is unknown, so compare *name* with the file's name.
        if entry.path.stem == name:
            raise entry.error
    raise SpiderError(_no_such(name, [entry.name for entry in spiders], broken_files))


def _no_such(name: str, names: list[str], broken_files: list[BrokenFile]) -> str:
    matches = difflib.get_close_matches(name, names, n=2)
    parts = [f"there is no spider {name!r} in ./{FOLDER}"]
    if matches:
        parts.append(f"did you mean {' or '.join(matches)}?")
    parts.append(f"there are {', '.join(sorted(names))}" if names else "it has none")
    if broken_files:
        files = ", ".join(str(broken_file.path) for broken_file in broken_files)
        parts.append(f"{files} cannot be loaded (`crawlcw list` says why)")
    return "; ".join(parts)


def _in_module(module: ModuleType, class_name: str, path: str) -> type[Spider]:
    spiders = _spiders(module)
    names = ", ".join(spider_class.__name__ for spider_class in spiders)
    if class_name:
        spider_class = getattr(module, class_name, None)
        if isinstance(spider_class, type) and issubclass(spider_class, Spider):
            return spider_class
        if spiders or not _scrapy_names(module):
            hint = f"its spiders: {names}" if names else "it has no spider"
            raise SpiderError(f"{path} has no spider class {class_name!r}; {hint}")
    if not spiders:
        from crawlcw.tracking import UseCase  # imported late: rarely needed

        if any(isinstance(value, UseCase) for value in vars(module).values()):
            raise SpiderError(
                f"{path} has a use case, not a spider: "
                f"{command_line('work', path)} works on its tasks"
            )
        if scrapy_names := _scrapy_names(module):
            raise SpiderError(
                f"{path} has a spider of Scrapy: `crawlcw run FOLDER:{scrapy_names[0]}` runs it as "
                f"it is, where FOLDER has scrapy.cfg, and `crawlcw check {path}` helps to port it"
            )
        raise SpiderError(f"{path} has no spider: a class derived from crawlcw.Spider, with a name")
    if len(spiders) > 1:
        raise SpiderError(
            f"{path} has several spiders ({names}): choose one, such as "
            f"{path}:{spiders[0].__name__}"
        )
    return spiders[0]


def _spiders(module: ModuleType) -> list[type[Spider]]:
    """Return the spiders that *module* itself defines, except classes with an empty `name`."""
    return [
        spider_class
        for spider_class in vars(module).values()
        if isinstance(spider_class, type)
        and issubclass(spider_class, Spider)
        and spider_class.__module__ == module.__name__
        and spider_class.name
    ]


def _scrapy_names(module: ModuleType) -> list[str]:
    """Return the names of the Scrapy spiders that *module* itself defines."""
    scrapy = sys.modules.get("scrapy")
    names = [
        getattr(value, "name", None)
        for value in vars(module).values()
        if scrapy is not None
        and isinstance(value, type)
        and issubclass(value, scrapy.Spider)
        and value.__module__ == module.__name__
    ]
    return [name for name in names if name]


class _UncachedLoader(SourceFileLoader):
    """A loader that compiles a file at each load, as Python does with a script.

    After a quick change of one digit, the file has the same size and the same time in whole
    seconds, so the import system would reuse old bytecode.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def load_file(path: Path) -> ModuleType:
    """Return the module in the file at *path*; raises `SpiderError`."""
    if not _is_file(path):
        problem = f"{path} is a folder" if path.is_dir() else f"there is no file {path}"
        python_path = path.with_name(path.name + ".py")
        hint = f": did you mean {python_path}?" if python_path.is_file() else ""
        raise SpiderError(problem + hint)
    # Give the module a unique name, because a spider in json.py must not replace the module `json`.
    name = f"crawlcw_spider_{abs(hash(path.resolve())):x}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SpiderError(f"{path} is not a Python file: its name must end in .py")
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = _UncachedLoader(name, spec.loader.path)
    module = importlib.util.module_from_spec(spec)
    _allow_imports_from(Path.cwd(), path.resolve().parent)
    # Register the module, because dataclasses and pickle look up a class's module by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _spider_error(str(path), error) from error
    return module


def load_module(name: str) -> ModuleType:
    """Import and return the module *name*; raises `SpiderError`."""
    _allow_imports_from(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise SpiderError(f"there is no module {error.name!r} to import") from None
        raise _spider_error(name, error) from error
    except (ValueError, TypeError):
        raise SpiderError(f"{name!r} is not a module name: write package.module:Class") from None
    except (Exception, SystemExit) as error:
        raise _spider_error(name, error) from error


def _allow_imports_from(*folders: Path) -> None:
    """Add *folders* to `sys.path`, so that a spider can import modules from there."""
    for folder in map(str, folders):
        # Append the folder at the end, because a spider in queue.py must not hide the module
        # `queue`.
        if folder not in sys.path:
            sys.path.append(folder)


def _spider_error(source: str, error: BaseException) -> SpiderError:
    """Return the one-sentence error for an exception in the user's code."""
    logger.debug("%s raised", printable(source), exc_info=error, extra={"event": "spider_error"})
    if isinstance(error, SyntaxError) and error.filename:
        return SpiderError(
            f"{_relative_path(error.filename)}, line {error.lineno}: "
            f"{type(error).__name__}: {error.msg}"
        )
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
    ]
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, SystemExit):
        message = "it exits while loading (SystemExit)"
    if isinstance(error, ImportError) and str(error).startswith("attempted relative import"):
        message += (
            ": write `from helpers import x` for a module beside the file, or give the spider "
            "as package.module:Class"
        )
    # Show the file of the outermost frame, because this frame is in the user's file. Inner frames
    # may be in a library.
    lines = [entry.lineno for entry in frames if entry.filename == frames[0].filename]
    position = f"{_relative_path(frames[0].filename)}, line {lines[-1]}" if frames else source
    return SpiderError(f"{position}: {message}")


def _relative_path(filename: str) -> str:
    path = Path(filename)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else filename
