"""Load a Scrapy project as Scrapy's command line does: scrapy.cfg, settings module, spider class.

The module imports Scrapy only when a function loads a project, because `name_of` serves commands
that read a ledger.
"""

import difflib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crawlcw.api.spider import is_name
from crawlcw.checking.source import Finding
from crawlcw.errors import CrawlcwError, SpiderError, UsageError

if TYPE_CHECKING:
    import scrapy
    from scrapy.crawler import Crawler
    from scrapy.settings import Settings
    from scrapy.spiderloader import SpiderLoaderProtocol

CONFIG = "scrapy.cfg"
_OLDEST = (2, 14)
_SETTINGS_VARIABLE = "SCRAPY_SETTINGS_MODULE"
_LONGEST_NAME = 60
_DIGEST_LENGTH = 8
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
#: Attributes of a spider that stand for settings, with a priority between project and spider.
_ATTRIBUTES = {
    "download_delay": "DOWNLOAD_DELAY",
    "max_concurrent_requests": "CONCURRENT_REQUESTS_PER_DOMAIN",
}
_ATTRIBUTE_PRIORITY = 25
#: Priority above every priority of Scrapy, such as 40 for the command line.
_FIXED_PRIORITY = 100
#: Settings whose work crawlcw does itself.
_FIXED_SETTINGS: dict[str, Any] = {
    "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "TWISTED_REACTOR_ENABLED": True,
    "ASYNCIO_EVENT_LOOP": None,
    "JOBDIR": None,
    "TELNETCONSOLE_ENABLED": False,
}


def name_of(spider_name: str) -> str:
    """Return the name in ledgers of the Scrapy spider *spider_name*: `example-com`.

    A name that a crawlcw spider may have stays as it is.
    """
    if is_name(spider_name):
        return spider_name
    name = _NOT_IN_NAMES.sub("-", spider_name)
    name = name if name[:1].isalpha() else f"s-{name}"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = sha256(spider_name.encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: _LONGEST_NAME - _DIGEST_LENGTH - 1]}-{digest}"


def crawler_of(folder: Path, spider_name: str, assignments: Sequence[str] = ()) -> "Crawler":
    """Return a Scrapy crawler for a spider of the project in *folder*.

    *assignments* are `NAME=VALUE` texts of Scrapy's settings. Raises `SpiderError` or
    `UsageError`, with one sentence, if the project cannot run.
    """
    working_folder = Path.cwd()
    with _opened(folder, assignments) as settings:
        from crawlcw.scrapy import refusals

        crawler = _crawler(settings, spider_name, folder)
        refusals.check(crawler, Path.cwd(), working_folder)
    return crawler


def findings(folder: Path, spider_name: str, assignments: Sequence[str] = ()) -> list[Finding]:
    """Return what cannot run in a project, or differs from Scrapy; see `refusals.findings`.

    If *spider_name* is empty, all spiders of the project count. Raises the errors of `crawler_of`,
    and `SettingsError`.
    """
    working_folder = Path.cwd()
    with _opened(folder, assignments) as settings:
        from crawlcw.scrapy import refusals
        from crawlcw.scrapy.settings import crawlcw_settings, limits_of

        all_findings: set[Finding] = set()
        for name in [spider_name] if spider_name else _loader(settings).list():
            crawler = _crawler(settings, name, folder)
            crawlcw_settings(crawler.settings)
            limits_of(crawler.settings)
            all_findings |= {*refusals.findings(crawler, Path.cwd(), working_folder)}
    return sorted(all_findings)


def spider_classes(folder: Path) -> "list[type[scrapy.Spider]]":
    """Return the spiders of the project in *folder*, sorted by name; see `crawler_of`."""
    with _opened(folder) as settings:
        loader = _loader(settings)
        return [loader.load(name) for name in sorted(loader.list())]


@contextmanager
def _opened(folder: Path, assignments: Iterable[str] = ()) -> "Iterator[Settings]":
    """Yield the project's settings; the block runs in *folder*, and its errors become sentences."""
    _check(folder)
    from scrapy.exceptions import ScrapyDeprecationWarning

    from crawlcw.scrapy import older, reactor
    from crawlcw.scrapy.import_errors import import_error

    working_folder = Path.cwd()
    project_folder = folder.resolve()
    settings_module = os.environ.get(_SETTINGS_VARIABLE)
    # The folder must be the first one, because another folder may have a package of this name.
    if sys.path[:1] != [str(project_folder)]:
        sys.path.insert(0, str(project_folder))
    os.chdir(project_folder)
    try:
        # Install the reactor before the project can import `twisted.internet.reactor`, because that
        # import installs another reactor.
        reactor.install()
        older.install()
        # A deprecated call still works in the installed Scrapy.
        warnings.filterwarnings("ignore", category=ScrapyDeprecationWarning)
        yield _settings(folder, assignments)
    except CrawlcwError:
        raise
    except (Exception, SystemExit) as error:
        raise import_error(error, project_folder, working_folder) from error
    finally:
        os.chdir(working_folder)
        # Scrapy sets the variable, and a later project would get the settings of this project.
        if settings_module is None:
            os.environ.pop(_SETTINGS_VARIABLE, None)


def _check(folder: Path) -> None:
    """Raise `UsageError` if *folder* has no project, or Scrapy is missing or too old."""
    if not (folder / CONFIG).is_file():
        configs = sorted((*folder.glob(f"*/{CONFIG}"), *folder.parent.glob(CONFIG)))
        hint = f": did you mean {configs[0].parent}?" if configs else ""
        raise UsageError(f"{folder} is not a Scrapy project, because it has no {CONFIG}{hint}")
    try:
        import scrapy
    except ImportError as error:
        raise UsageError(
            "a Scrapy project needs Scrapy: install it with `pip install 'crawlcw[scrapy]'` "
            f"({error})"
        ) from None
    version = getattr(scrapy, "__version__", "?")
    if tuple(int(number) for number in re.findall(r"\d+", version)[:2]) < _OLDEST:
        raise UsageError(
            f"this environment has Scrapy {version}, and crawlcw needs Scrapy "
            f"{'.'.join(map(str, _OLDEST))} or later: `pip install 'crawlcw[scrapy]'`"
        )


def _settings(folder: Path, assignments: Iterable[str]) -> "Settings":
    from scrapy.utils.project import get_project_settings

    settings = get_project_settings()
    if not os.environ.get(_SETTINGS_VARIABLE):
        raise UsageError(
            f"{folder / CONFIG} names no settings module: write `[settings]` and "
            "`default = package.settings` into it"
        )
    for text in assignments:
        name, _, value = text.partition("=")
        settings.set(name.strip(), value.strip(), priority="cmdline")
    for name, value in _FIXED_SETTINGS.items():
        settings.set(name, value, priority=_FIXED_PRIORITY)
    return settings


def _crawler(settings: "Settings", spider_name: str, folder: Path) -> "Crawler":
    from scrapy.crawler import Crawler

    crawler = Crawler(_spider_class(settings, spider_name, folder), settings)
    for attribute, name in _ATTRIBUTES.items():
        # Scrapy applies the attributes only when it crawls.
        if hasattr(crawler.spidercls, attribute):
            value = getattr(crawler.spidercls, attribute)
            crawler.settings.set(name, value, priority=_ATTRIBUTE_PRIORITY)
    return crawler


def _loader(settings: "Settings") -> "SpiderLoaderProtocol":
    from scrapy.spiderloader import get_spider_loader

    with warnings.catch_warnings():
        # `_spider_class` refuses such a spider.
        warnings.filterwarnings("ignore", "There are several spiders with the same name")
        return get_spider_loader(settings)


def _spider_class(settings: "Settings", spider_name: str, folder: Path) -> "type[scrapy.Spider]":
    loader = _loader(settings)
    names = sorted(loader.list())
    if spider_name not in names:
        matches = difflib.get_close_matches(spider_name, names, n=2)
        hint = f"did you mean {' or '.join(matches)}? " if matches else ""
        spiders = f"there are {', '.join(names)}" if names else "it has no spider"
        raise SpiderError(
            f"there is no spider {spider_name!r} in the Scrapy project {folder}: {hint}{spiders}"
        )
    # Scrapy would only warn, and then run the last one.
    classes = getattr(loader, "_found", {}).get(spider_name, ())
    if len(classes) > 1:
        locations = " and ".join(f"{module}.{class_name}" for module, class_name in classes)
        raise SpiderError(f"{locations} have the same name {spider_name!r}: rename one of them")
    same = [name for name in names if name_of(name) == name_of(spider_name) and name != spider_name]
    if same:
        raise SpiderError(
            f"the spiders {spider_name!r} and {same[0]!r} would have the same name "
            f"{name_of(spider_name)} in a ledger: rename one of them"
        )
    return loader.load(spider_name)
