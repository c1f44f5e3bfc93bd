"""Turn an error that a project raises while it loads into one sentence with the way out."""

import os
import re
import shlex
import traceback
from pathlib import Path

from crawlcw.errors import SpiderError
from crawlcw.model.sanitize import text_of

#: Modules and names that Scrapy has removed, by the version that removed them. `older` has others.
_REMOVED_BY_VERSION = {
    "1.6": "command contrib contrib_exp dupefilter linkextractor project spider spidermanager stats"
    " statscol utils.decorator",
    "1.7": "conf loader.XPathItemLoader log selector.HtmlXPathSelector selector.XmlXPathSelector"
    " spiders.BaseSpider",
    "1.8": "xlib",
    "2.3": "linkextractors.htmlparser linkextractors.regex linkextractors.sgml",
    "2.10": "utils.reqser",
    "2.12": "downloadermiddlewares.decompression",
    "2.14": "utils.misc.create_instance",
    "2.16": "core.downloader.handlers.http10 core.downloader.webclient",
    "2.18": "utils.datatypes.CaselessDict utils.misc.md5sum",
}
REMOVED = {
    f"scrapy.{name}": version
    for version, names in _REMOVED_BY_VERSION.items()
    for name in names.split()
}
_NEWS = "https://docs.scrapy.org/en/latest/news.html"
_PYTHON_2_MODULES = (
    *("ConfigParser", "HTMLParser", "Queue", "StringIO", "cPickle", "cStringIO", "httplib"),
    *("urllib2", "urlparse"),
)
_PYTHON_2_NAMES = (
    *("basestring", "execfile", "long", "raw_input", "reload", "unichr", "unicode", "xrange"),
)
_PYTHON_2_SYNTAX = re.compile(
    "Missing parentheses in call to '(print|exec)'|multiple exception types must be parenthesized"
    "|leading zeros in decimal integer"
)
_NO_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def import_error(error: BaseException, folder: Path, working_folder: Path) -> SpiderError:
    """Return the sentence for *error*, which the project in *folder* has raised while it loads.

    The sentence names the innermost line of the project; paths are relative to *working_folder*.
    """
    frames = [
        (frame.filename, frame.lineno or 0)
        for frame in traceback.extract_tb(error.__traceback__)
        if is_of_project(frame.filename, folder)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        frames = [(error.filename, error.lineno or 0)]
    filename, line = frames[-1] if frames else (str(folder / "scrapy.cfg"), 0)
    path = shown_path(filename, working_folder)
    position = f"{path}, line {line}" if line else path
    return SpiderError(f"{position}: {_cause(error, folder, working_folder)}")


def is_of_project(filename: str, folder: Path) -> bool:
    """Return whether a file is the project's own, and not in a virtual environment in *folder*."""
    return Path(filename).is_relative_to(folder) and "site-packages" not in Path(filename).parts


def shown_path(filename: str, working_folder: Path) -> str:
    """Return a path relative to *working_folder* if the file is in it, and *filename* otherwise."""
    path = Path(filename)
    is_below = path.is_relative_to(working_folder)
    return os.fspath(path.relative_to(working_folder)) if is_below else filename


def _cause(error: BaseException, folder: Path, working_folder: Path) -> str:
    text = error.msg if isinstance(error, SyntaxError) else text_of(error)
    message = f"{type(error).__name__}: {text}"
    missing = _missing_name(error)
    removed_name = next((name for name in REMOVED if f"{missing}.".startswith(f"{name}.")), None)
    if removed_name is not None:
        version = REMOVED[removed_name]
        return f"{missing} is gone since Scrapy {version}: {_NEWS} says what to use instead"
    if (
        missing in _PYTHON_2_MODULES
        or (isinstance(error, NameError) and error.name in _PYTHON_2_NAMES)
        or (isinstance(error, SyntaxError) and _PYTHON_2_SYNTAX.search(error.msg))
    ):
        return f"this is Python 2 ({message}): convert the project to Python 3"
    if isinstance(error, ModuleNotFoundError):
        requirements = folder / "requirements.txt"
        path = shown_path(str(requirements), working_folder)
        hint = (
            f"`pip install -r {shlex.quote(path)}` installs its packages"
            if requirements.is_file()
            else "install the package that has it, or correct the name"
        )
        return f"there is no module {error.name!r}: {hint}"
    if isinstance(error, SystemExit):
        return "it exits while loading (SystemExit)"
    return message


def _missing_name(error: BaseException) -> str:
    """Return the full name of the module or object that *error* misses, or an empty text."""
    if isinstance(error, ModuleNotFoundError):
        return error.name or ""
    if isinstance(error, ImportError):
        match = _NO_NAME.search(str(error))
        return f"{match[2]}.{match[1]}" if match else ""
    if isinstance(error, AttributeError):
        return f"{getattr(error.obj, '__name__', '')}.{error.name}"
    return ""
