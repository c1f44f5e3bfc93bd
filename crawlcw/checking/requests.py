"""Checks of requests and responses for Scrapy's arguments, callbacks and attributes."""

import ast
from collections.abc import Iterator

from crawlcw.api.scrapy_words import META_KEYS, REQUEST_ARGUMENTS
from crawlcw.checking.bindings import Kind, Known, Walk
from crawlcw.checking.findings import Findings
from crawlcw.checking.source import FOREIGN_MODULES, Class

_REQUESTS = "spiders#Requests"
_RESPONSES = "spiders#Responses"
_CLASSES = frozenset({"Request", "FormRequest", "JsonRequest", "SplashRequest"})
#: Other packages have their own `Request`.
_PACKAGES = FOREIGN_MODULES | {"crawlcw"}
_CALLBACKS = frozenset({"callback", "errback"})
#: Methods of every spider.
_OF_SPIDERS = frozenset({"parse", "on_error", "item", "start"})
#: Attributes of Scrapy's responses that a `Response` does not have.
_OF_RESPONSE = {
    "body_as_unicode": "response.text",
    "cb_kwargs": "response.context",
    "certificate": "nothing",
    "flags": "nothing",
    "ip_address": "nothing",
    "jmespath": "response.json()",
    "protocol": "nothing",
    "replace": "response.encoding = ... for another encoding",
}
_OF_REQUEST = {
    "cb_kwargs": "request.context",
    "flags": "request.context",
    "meta": "request.context",
}
#: Keys of Scrapy's `meta` that are not names of <meta> elements.
_SCRAPYS_KEYS = frozenset({*META_KEYS, "item"})


class Requests:
    """Finds Scrapy's arguments of requests and attributes of responses."""

    def __init__(self, found: Findings, *, of_scrapy: bool) -> None:
        self._found = found
        self._of_scrapy = of_scrapy
        self._metas: list[tuple[int, str]] = []
        #: Keys that requests of this file pass to callbacks.
        self._handed_on: set[str] = set()

    def finish(self) -> None:
        """Add the findings that need the whole file."""
        keys = _SCRAPYS_KEYS | self._handed_on
        for line, key in self._metas:
            if self._of_scrapy or key in keys:
                instead = META_KEYS.get(key, f"response.context[{key!r}]")
                self._tell(line, f"response.meta[{key!r}]", instead, _REQUESTS)

    def look(self, node: ast.expr, owner: Known | None, walk: Walk) -> None:
        """See `Rule.look`."""
        kind = None if owner is None else owner.kind
        match node:
            case ast.Call():
                self._call(node, kind, walk)
            case ast.Attribute(attr=name):
                of = {Kind.RESPONSE: _OF_RESPONSE, Kind.REQUEST: _OF_REQUEST}.get(kind)  # type: ignore[arg-type]  # None is in it as little as others
                if of and name in of and isinstance(node.ctx, ast.Load):
                    self._tell(node.end_lineno or node.lineno, ast.unparse(node), of[name])
            case ast.Subscript(slice=ast.Constant(value=key)):
                self._item(node.lineno, key, kind)

    def _item(self, line: int, key: object, kind: Kind | None) -> None:
        if kind is Kind.METAS and isinstance(key, str):
            self._metas.append((line, key))
        if kind is Kind.HEADERS:
            name = key.decode("latin-1") if isinstance(key, bytes) else key
            if isinstance(name, str) and (name != name.lower() or isinstance(key, bytes)):
                what = f"response.headers[{key!r}]: they are texts by lower-case name"
                self._tell(line, what, f"response.headers[{name.lower()!r}]")

    def _call(self, node: ast.Call, kind: Kind | None, walk: Walk) -> None:
        match node:
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=key), *_]):
                self._item(node.lineno, key, kind)
            case ast.Call(func=ast.Attribute(attr="decode")) if kind is Kind.HEADER:
                self._tell(
                    node.lineno, f"{ast.unparse(node)}: headers are texts here", "no decode()"
                )
            case ast.Call(func=ast.Attribute(attr="getlist")) if kind is Kind.HEADERS:
                self._tell(node.lineno, ast.unparse(node), "response.headers.get(name)")
        dotted = walk.source.dotted(node.func)
        name = dotted.rpartition(".")[2]
        is_class = name in _CLASSES and dotted.partition(".")[0] in _PACKAGES
        if not is_class:
            of_response = kind is Kind.RESPONSE and isinstance(node.func, ast.Attribute)
            name = node.func.attr if of_response and isinstance(node.func, ast.Attribute) else ""
        if is_class or name in ("follow", "follow_all"):
            self._request(node, name, walk)

    def _request(self, call: ast.Call, name: str, walk: Walk) -> None:
        given = {keyword.arg: keyword for keyword in call.keywords}
        for argument, keyword in given.items():
            if argument in ("meta", "cb_kwargs", "context"):
                self._handed_on |= set(_keys(keyword.value))
            if argument not in REQUEST_ARGUMENTS:
                continue
            what = f"{name}({argument}=...)"
            own = [key for key in _keys(keyword.value) if argument == "meta" and key in META_KEYS]
            for key in own:
                self._tell(keyword.value.lineno, f"{what}: {key!r}", META_KEYS[key], _REQUESTS)
            if not own or len(own) < len(list(_keys(keyword.value))):
                instead = REQUEST_ARGUMENTS[argument]
                self._tell(keyword.value.lineno, what, instead, _REQUESTS)
        if self._of_scrapy and "dont_filter" in given:
            what = "dont_filter=True: the same; allowed_hosts hold for it all the same"
            self._tell(given["dont_filter"].value.lineno, what, "", _REQUESTS)
        if walk.owner is None or not walk.owner.is_spider:
            return
        values = [k.value for a, k in given.items() if a in _CALLBACKS]
        for value in (*call.args[1:2], *values):
            self._callback(value, walk.owner)

    def _callback(self, value: ast.expr, owner: Class) -> None:
        match value:
            case ast.Constant(value=str(method)):
                pass
            case ast.Attribute(value=ast.Name(id="self"), attr=method):
                pass
            case ast.Lambda():
                self._tell(value.lineno, "a callback is a method of the spider", "def of its own")
                return
            case _:
                return
        if owner.is_whole and not owner.defines(method) and method not in _OF_SPIDERS:
            self._tell(value.lineno, f"{owner.node.name} has no callback {method!r}")

    def _tell(self, line: int, what: str, instead: str = "", guide: str = _RESPONSES) -> None:
        self._found.tell(line, what, instead, guide)


def _keys(value: ast.expr) -> Iterator[str]:
    match value:
        case ast.Dict(keys=keys):
            for key in keys:
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
            for keyword in keywords:
                if keyword.arg:
                    yield keyword.arg


def callbacks_of(owner: Class) -> dict[str, set[str]]:
    """Return the methods that requests of a spider name as `callback` and as `errback`."""
    found: dict[str, set[str]] = {"callback": {"parse"}, "errback": set()}
    for each in owner.lineage:
        for node in ast.walk(each.node):
            if not isinstance(node, ast.Call):
                continue
            is_request = isinstance(node.func, ast.Name | ast.Attribute)
            name = ast.unparse(node.func).rpartition(".")[2] if is_request else ""
            if name in _CLASSES | {"follow", "follow_all"} and len(node.args) > 1:
                found["callback"] |= _named(node.args[1])
            for keyword in node.keywords:
                if keyword.arg in found:
                    found[keyword.arg] |= _named(keyword.value)
    return found


def _named(value: ast.expr) -> set[str]:
    match value:
        case ast.Attribute(value=ast.Name(id="self"), attr=name) | ast.Constant(value=str(name)):
            return {name}
        case _:
            return set()


def signatures(owner: Class, found: Findings) -> None:
    """Find callbacks with more parameters than crawlcw passes."""
    named = callbacks_of(owner)
    for method in owner.methods():
        every = [each.arg for each in (*method.args.posonlyargs, *method.args.args)]
        required = len(every) - len(method.args.defaults) - 1
        takes_one = required == 1 and len(every) == 2 and not method.args.vararg
        if method.name in named["errback"] and takes_one:
            what = f"def {method.name}(self, {every[1]})"
            instead = f"def {method.name}(self, request, error): error.reason, error.response"
        elif method.name in named["callback"] and required > 1:
            what = f"def {method.name}(): a callback is given the response alone"
            more = every[2 : required + 1]
            instead = ", ".join(f"response.context[{name!r}]" for name in more)
        else:
            continue
        found.tell(method.lineno, what, instead, _REQUESTS)
