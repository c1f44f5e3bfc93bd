"""Check for extras that a spider needs and that are not installed."""

import ast
from importlib.util import find_spec

from crawlcw.checking.findings import Findings
from crawlcw.checking.source import Source, path_of

#: Needed package, extra, and section of the manual.
_PARSEL = ("parsel", "xpath", "spiders#Responses")
_ATTRIBUTES = {
    "response.selector": _PARSEL,
    "response.xpath": _PARSEL,
    "response.form": ("parsel", "forms", "spiders#Forms"),
}
_SWITCHES = {
    "browser": ("playwright", "browser", "browser"),
    "keep_bodies": ("warcio", "warc", "warc"),
    "trace": ("opentelemetry", "otel", "deploying#Traces"),
}
_REMOTE = ("fsspec", "remote", "files")
_SOCKS = ("python_socks", "socks", "proxies")
_CALLS = frozenset({"crawlcw.Request", "crawlcw.Settings"})
_FOLLOWS = frozenset({"response.follow", "response.follow_all"})


def check(source: Source, findings: Findings) -> None:
    """Report the first use of each extra that is not installed."""
    uses: list[tuple[int, str, tuple[str, str, str]]] = []
    for node in ast.walk(source.tree):
        match node:
            case ast.Attribute() if (path := path_of(node)) in _ATTRIBUTES:
                uses.append((node.lineno, path, _ATTRIBUTES[path]))
            case ast.Call(func=function) if (
                source.dotted(function) in _CALLS or path_of(function) in _FOLLOWS
            ):
                for keyword in node.keywords:
                    uses += _of_argument(keyword)
    reported = set()
    for line, code, (package, extra, section) in sorted(uses):
        if extra not in reported and find_spec(package) is None:
            reported.add(extra)
            message = f"{code} needs {package}, which is not installed"
            findings.tell(line, message, f"pip install 'crawlcw[{extra}]'", section)


def _of_argument(keyword: ast.keyword) -> list[tuple[int, str, tuple[str, str, str]]]:
    line = keyword.value.lineno
    match keyword.arg, keyword.value:
        case ("browser" | "keep_bodies" | "trace") as name, ast.Constant(value=True):
            return [(line, f"{name}=True", _SWITCHES[name])]
        case "save_to", ast.Constant(value=str(url)) if "://" in url:
            return [(line, f"save_to={url!r}", _REMOTE)]
        case "proxy" | "proxies", value if "socks" in ast.unparse(value):
            return [(line, f"{keyword.arg}= with SOCKS", _SOCKS)]
    return []
