"""Names in a spider that mean something in Scrapy alone, and the word to use instead.

A class attribute of another framework does nothing and says nothing: the crawl
goes on without what its author meant. So the source of a spider is read for
such names, and for callbacks that do not exist.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from crawlcw.api.arguments import FOREIGN
from crawlcw.api.spider import Spider

_ATTRIBUTES = {
    "allowed_domains": "allowed_hosts",
    "custom_settings": "settings = Settings(...)",
    "start_requests": "async def start(self)",
    "from_crawler": "async def opened(self)",
    "handle_httpstatus_list": "settings = Settings(accept_statuses=[...])",
    "http_user": "Request(headers=...)",
    "download_delay": "settings = Settings(delay=...)",
    "process_request": "before_request(self, request)",
    "process_response": "after_response(self, response)",
    "spider_closed": "async def closed(self, report)",
}
_MODULES = frozenset({"scrapy", "itemloaders", "itemadapter"})
_REQUESTS = frozenset({"Request", "FormRequest", "JsonRequest", "follow", "follow_all"})
#: What Scrapy itself puts into `response.meta`, which is the page's <meta>s here.
_META_KEYS = frozenset(
    {"depth", "item", "cookiejar", "proxy", "download_slot", "download_timeout", "redirect_urls"}
)
_CALLBACKS = frozenset({"callback", "errback"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something in a spider's source that does not do what it seems to."""

    line: int  #: in its file, from 1
    message: str


def findings(kind: type[Spider]) -> list[Finding]:
    """Return what is wrong in the source of *kind*, in the order of its lines.

    Classes between it and `Spider` are read as well. Nothing where the source
    cannot be had.
    """
    found: set[tuple[int, str]] = set()
    for each in kind.__mro__[: kind.__mro__.index(Spider)]:
        if not issubclass(each, Spider):
            continue
        try:
            lines, first = inspect.getsourcelines(each)
        except (OSError, TypeError):
            continue
        tree = ast.parse(textwrap.dedent("".join(lines)))
        found |= {(first + line - 1, text) for line, text in _in_class(tree, kind)}
    return [Finding(line=line, message=message) for line, message in sorted(found)]


def _in_class(tree: ast.Module, kind: type[Spider]) -> Iterator[tuple[int, str]]:
    (definition,) = tree.body
    assert isinstance(definition, ast.ClassDef)
    for statement in definition.body:
        for name in _defined(statement):
            if name in _ATTRIBUTES:
                yield statement.lineno, f"{name} means nothing here: write {_ATTRIBUTES[name]}"
    for node in ast.walk(definition):
        if isinstance(node, ast.Call):
            yield from _in_call(node, kind)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from _in_import(node)
        elif (
            isinstance(node, ast.Subscript) and _is_meta(node.value) and _is_scrapys_key(node.slice)
        ):
            yield node.lineno, "response.meta is the page's <meta>s: write response.context"


def _defined(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def _in_call(call: ast.Call, kind: type[Spider]) -> Iterator[tuple[int, str]]:
    name = _name_of(call.func)
    if name in ("extract", "extract_first", "getall", "get") and isinstance(
        call.func, ast.Attribute
    ):
        selected = call.func.value
        if isinstance(selected, ast.Call) and _is_css(selected.func, "css"):
            yield call.lineno, f"css() returns nodes, which have no .{name}(): write .text()"
    css = _is_css(call.func, "css", "css_first")
    if css and call.args and _has_pseudo_element(call.args[0]):
        yield call.lineno, "::text and ::attr() are parsel's: write response.selector.css(...)"
    if name not in _REQUESTS:
        return
    for keyword in call.keywords:
        if keyword.arg in FOREIGN:
            message = f"{name}({keyword.arg}=...) means nothing here: write {FOREIGN[keyword.arg]}"
            yield keyword.value.lineno, message
    yield from _missing_callbacks(call, kind)


def _missing_callbacks(call: ast.Call, kind: type[Spider]) -> Iterator[tuple[int, str]]:
    given = [keyword.value for keyword in call.keywords if keyword.arg in _CALLBACKS]
    for value in [*call.args[1:2], *given]:
        match value:
            case ast.Constant(value=str(method)):
                pass
            case ast.Attribute(value=ast.Name(id="self"), attr=method):
                pass
            case _:
                continue
        if not callable(getattr(kind, method, None)):
            yield value.lineno, f"{kind.__name__} has no callback {method!r}"


def _in_import(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, str]]:
    names = (
        [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
    )
    for name in names:
        if name.partition(".")[0] in _MODULES:
            yield node.lineno, f"{name} is Scrapy's: import from crawlcw"


def _is_meta(node: ast.expr) -> bool:
    if not isinstance(node, ast.Attribute):
        return False
    return node.attr == "meta" and isinstance(node.value, ast.Name) and node.value.id == "response"


def _is_scrapys_key(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and key.value in _META_KEYS


def _has_pseudo_element(argument: ast.expr) -> bool:
    return isinstance(argument, ast.Constant) and "::" in str(argument.value)


def _is_css(function: ast.expr, *names: str) -> bool:
    """Return whether *function* is a method of that name, and not that of `response.selector`."""
    of_parsel = isinstance(function, ast.Attribute) and _name_of(function.value) == "selector"
    return _name_of(function) in names and not of_parsel


def _name_of(function: ast.expr) -> str:
    match function:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""
