"""Report Scrapy's names in requests, responses and callbacks, and extras that are not installed.

The check infers no types: it takes every variable named `response` for a response.
"""

import ast
from collections.abc import Iterator
from importlib.util import find_spec

from crawlcw.api.scrapy_words import META_KEYS, REQUEST_ARGUMENTS
from crawlcw.api.spider import Spider
from crawlcw.checking.source import FOREIGN_MODULES, Class, Source, path_of

_REQUESTS = "requests"
_RESPONSES = "responses"
_FAILURES = "spiders#Failures"
_CLASSES = frozenset({"Request", "FormRequest", "JsonRequest", "SplashRequest"})
_FOLLOWS = frozenset({"follow", "follow_all"})
_MAKING = _CLASSES | _FOLLOWS
#: Packages whose `Request` is checked, because other packages define a `Request` too.
_PACKAGES = FOREIGN_MODULES | {"crawlcw"}
#: crawlcw's replacement for each attribute that only Scrapy's requests and responses have.
_ATTRIBUTES = {
    "response.body_as_unicode": "response.text",
    "response.cb_kwargs": "response.context",
    "response.certificate": "nothing",
    "response.flags": "nothing",
    "response.ip_address": "nothing",
    "response.jmespath": "response.json()",
    "response.protocol": "nothing",
    "response.replace": "response.encoding = ... for another encoding",
    "response.request.cb_kwargs": "response.context",
    "response.request.meta": "response.context",
}
#: For each extra of crawlcw, its package and its section of the manual.
_EXTRAS = {
    "browser": ("playwright", "browser"),
    "otel": ("opentelemetry", "watching#Traces"),
    "remote": ("fsspec", "files"),
    "socks": ("python_socks", "proxies"),
    "warc": ("warcio", "warc"),
    "xpath": ("parsel", _RESPONSES),
}
_OF_ATTRIBUTES = {
    "response.selector": "xpath",
    "response.xpath": "xpath",
}
_OF_SWITCHES = {"browser": "browser", "keep_bodies": "warc", "trace": "otel"}
_WITH_EXTRAS = frozenset({"crawlcw.Request", "crawlcw.Settings"})


def check(source: Source) -> None:
    """Report arguments and attributes that only Scrapy's requests and responses have."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Call():
                _check_call(node, source)
            case ast.Attribute(ctx=ast.Load()) if (path := path_of(node)) in _ATTRIBUTES:
                source.report(node.lineno, path, _ATTRIBUTES[path], _RESPONSES)
            # crawlcw's `response.meta` holds the page's <meta> elements.
            case ast.Subscript(
                value=ast.Attribute() as owner, slice=ast.Constant(value=str(key))
            ) if path_of(owner) == "response.meta" and (source.needs_scrapy or key in META_KEYS):
                replacement = META_KEYS.get(key, f"response.context[{key!r}]")
                source.report(node.lineno, f"response.meta[{key!r}]", replacement, _REQUESTS)


def _check_call(call: ast.Call, source: Source) -> None:
    name = _request_of(call, source)
    if not name:
        return
    for keyword in call.keywords:
        line, argument = keyword.value.lineno, keyword.arg
        code = f"{name}({argument}=...)"
        if argument == "dont_filter" and source.needs_scrapy:
            message = "dont_filter=True, but allowed_hosts still apply to the request"
            source.report(line, message, guide=_REQUESTS)
        elif name == "follow_all" and argument in ("css", "xpath"):
            selection = ast.unparse(keyword.value)
            selection = selection if argument == "css" else f"response.xpath({selection})"
            source.report(line, code, f"response.follow_all({selection})", _RESPONSES)
        elif argument in REQUEST_ARGUMENTS:
            keys = list(_keys(keyword.value))
            scrapy_keys = [key for key in keys if argument == "meta" and key in META_KEYS]
            for key in scrapy_keys:
                source.report(line, f"{code}: {key!r}", META_KEYS[key], _REQUESTS)
            if not scrapy_keys or len(scrapy_keys) < len(keys):
                source.report(line, code, REQUEST_ARGUMENTS[argument], _REQUESTS)


def _request_of(call: ast.Call, source: Source) -> str:
    """Return the class or method that *call* calls to make a request, or `""`."""
    package, _, name = source.full_name(call.func).partition(".")
    name = name.rpartition(".")[2]
    if name in _CLASSES and package in _PACKAGES:
        return name
    return _follows(call.func)


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


def check_extras(source: Source) -> None:
    """Report the first use of each extra that is not installed."""
    reported = set()
    for line, code, extra in sorted(_uses(source)):
        package, section = _EXTRAS[extra]
        if extra not in reported and find_spec(package) is None:
            reported.add(extra)
            message = f"{code} needs {package}, which is not installed"
            source.report(line, message, f"pip install 'crawlcw[{extra}]'", section)


def _uses(source: Source) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the code and the name of the extra for each use of an extra."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute() if (path := path_of(node)) in _OF_ATTRIBUTES:
                yield node.lineno, path, _OF_ATTRIBUTES[path]
            case ast.Call(func=callee, keywords=keywords) if source.full_name(
                callee
            ) in _WITH_EXTRAS or _follows(callee):
                for keyword in keywords:
                    line, name = keyword.value.lineno, keyword.arg
                    match name, keyword.value:
                        case (("browser" | "keep_bodies" | "trace"), ast.Constant(value=True)):
                            yield line, f"{name}=True", _OF_SWITCHES[name]
                        case "save_to", ast.Constant(value=str(url)) if "://" in url:
                            yield line, f"save_to={url!r}", "remote"
                        case (("proxy" | "proxies"), value) if "socks" in ast.unparse(value):
                            yield line, f"{name}= with SOCKS", "socks"


def _follows(function: ast.expr) -> str:
    """Return the method's name if *function* is `response.follow` or `.follow_all`, else `""`."""
    owner, _, name = path_of(function).rpartition(".")
    return name if owner == "response" and name in _FOLLOWS else ""


def check_callbacks(spider: Class) -> None:
    """Report callbacks and errbacks whose parameters differ from crawlcw's arguments."""
    nodes = [node for owner in spider.lineage for node in ast.walk(owner.node)]
    called_nodes = {node.func for node in nodes if isinstance(node, ast.Call)}
    referenced_names = {
        path_of(node).removeprefix("self.")
        for node in nodes
        if isinstance(node, ast.Attribute) and node not in called_nodes
    }
    for method in spider.methods():
        parameters = [argument.arg for argument in (*method.args.posonlyargs, *method.args.args)][
            1:
        ]
        required = len(parameters) - len(method.args.defaults)
        if method.name not in referenced_names:
            continue
        if parameters == ["failure"]:
            message = f"def {method.name}(self, failure)"
            replacement = f"def {method.name}(self, request, error): error.reason, error.response"
            spider.source.report(method.lineno, message, replacement, _FAILURES)
        elif parameters[:1] == ["response"] and required > 1:
            message = f"def {method.name}(): a callback gets only the response"
            replacement = ", ".join(
                f"response.context[{name!r}]" for name in parameters[1:required]
            )
            spider.source.report(method.lineno, message, replacement, _REQUESTS)
    packages = {
        name.partition(".")[0] for class_ in spider.lineage for name in class_.foreign_bases
    }
    if packages <= _PACKAGES | {"object"}:
        for call in ast.walk(spider.node):
            if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in _MAKING:
                _check_names(call, spider)


def _check_names(call: ast.Call, spider: Class) -> None:
    """Report each callback that a request names if the spider does not define the callback."""
    callbacks = [
        keyword.value for keyword in call.keywords if keyword.arg in ("callback", "errback")
    ]
    for value in (*call.args[1:2], *callbacks):
        match value:
            case (
                ast.Attribute(value=ast.Name(id="self"), attr=name) | ast.Constant(value=str(name))
            ):
                if not spider.defines(name) and not hasattr(Spider, name):
                    message = f"{spider.node.name} has no callback {name!r}"
                    spider.source.report(value.lineno, message)
