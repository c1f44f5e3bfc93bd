"""Turn an error that a project raises while it loads into one sentence with the way out."""

import os
import re
import traceback
from pathlib import Path

from crawlcw.errors import SpiderError
from crawlcw.model.sanitize import text_of

#: Modules and names that Scrapy has removed: the version, and what to use instead.
REMOVED = {
    "scrapy.conf": ("1.7", "use crawler.settings"),
    "scrapy.contrib": ("1.6", "its modules are in scrapy.pipelines, scrapy.extensions and others"),
    "scrapy.contrib_exp": ("1.6", "its modules are in scrapy.pipelines and others"),
    "scrapy.command": ("1.6", "use scrapy.commands"),
    "scrapy.core.downloader.handlers.http10": ("2.16", "use handlers.http11"),
    "scrapy.core.downloader.webclient": ("2.16", "use a downloader middleware"),
    "scrapy.downloadermiddlewares.decompression": ("2.12", "unpack the body in the callback"),
    "scrapy.dupefilter": ("1.6", "use scrapy.dupefilters"),
    "scrapy.http.JSONRequest": ("2.12", "use scrapy.http.JsonRequest"),
    "scrapy.item.BaseItem": ("2.6", "use scrapy.Item"),
    "scrapy.item.DictItem": ("2.6", "use scrapy.Item"),
    "scrapy.linkextractor": ("1.6", "use scrapy.linkextractors"),
    "scrapy.linkextractors.sgml": ("2.3", "use scrapy.linkextractors.LinkExtractor"),
    "scrapy.loader.XPathItemLoader": ("1.7", "use scrapy.loader.ItemLoader"),
    "scrapy.loader.common": ("2.12", "use itemloaders.common"),
    "scrapy.loader.processors": ("2.12", "use itemloaders.processors"),
    "scrapy.log": ("1.7", "use logging"),
    "scrapy.project": ("1.6", "use the crawler's settings and signals"),
    "scrapy.selector.HtmlXPathSelector": ("1.7", "use scrapy.Selector"),
    "scrapy.selector.XmlXPathSelector": ("1.7", "use scrapy.Selector"),
    "scrapy.spider": ("1.6", "use scrapy.spiders"),
    "scrapy.spiders.BaseSpider": ("1.7", "use scrapy.Spider"),
    "scrapy.stats": ("1.6", "use crawler.stats"),
    "scrapy.statscol": ("1.6", "use scrapy.statscollectors"),
    "scrapy.utils.datatypes.CaselessDict": ("2.19", "use CaseInsensitiveDict"),
    "scrapy.utils.decorator": ("1.6", "use scrapy.utils.decorators"),
    "scrapy.utils.http": ("2.3", "use w3lib.http"),
    "scrapy.utils.iterators.xmliter": ("2.19", "use xmliter_lxml"),
    "scrapy.utils.markup": ("2.3", "use w3lib.html"),
    "scrapy.utils.misc.create_instance": ("2.14", "use build_from_crawler"),
    "scrapy.utils.misc.md5sum": ("2.19", "use hashlib"),
    "scrapy.utils.python.to_native_str": ("2.8", "use scrapy.utils.python.to_unicode"),
    "scrapy.utils.reqser": ("2.10", "use scrapy.utils.request.request_from_dict"),
    "scrapy.utils.request.request_fingerprint": ("2.12", "use crawler.request_fingerprinter"),
    "scrapy.xlib": ("1.8", "use pydispatch for scrapy.xlib.pydispatch"),
}
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
    return SpiderError(f"{position}: {_cause(error, folder)}")


def is_of_project(filename: str, folder: Path) -> bool:
    """Return whether a file is the project's own, and not in a virtual environment in *folder*."""
    return Path(filename).is_relative_to(folder) and "site-packages" not in Path(filename).parts


def shown_path(filename: str, working_folder: Path) -> str:
    """Return a path relative to *working_folder* if the file is in it, and *filename* otherwise."""
    path = Path(filename)
    is_below = path.is_relative_to(working_folder)
    return os.fspath(path.relative_to(working_folder)) if is_below else filename


def _cause(error: BaseException, folder: Path) -> str:
    text = error.msg if isinstance(error, SyntaxError) else text_of(error)
    message = f"{type(error).__name__}: {text}"
    missing = _missing_name(error)
    removed_name = next((name for name in REMOVED if f"{missing}.".startswith(f"{name}.")), None)
    if removed_name is not None:
        version, advice = REMOVED[removed_name]
        return f"{missing} is gone since Scrapy {version}: {advice}"
    if (
        missing in _PYTHON_2_MODULES
        or (isinstance(error, NameError) and error.name in _PYTHON_2_NAMES)
        or (isinstance(error, SyntaxError) and _PYTHON_2_SYNTAX.search(error.msg))
    ):
        return f"this is Python 2 ({message}): convert the project to Python 3"
    if isinstance(error, ModuleNotFoundError):
        requirements = folder / "requirements.txt"
        hint = (
            f"`pip install -r {requirements}` installs its packages"
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
