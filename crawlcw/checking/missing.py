"""Extras that a spider needs and this environment has not: the command that installs them."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec

from crawlcw.checking.bindings import Kind, Known, Walk
from crawlcw.checking.findings import Finding

#: What is written, the package that it needs, the extra, and the manual's section.
_PARSEL = ("parsel", "xpath", "spiders#Responses")
_FORMS = ("parsel", "forms", "spiders#Forms")
_BROWSER = ("playwright", "browser", "spiders#Pages that scripts make")
_REMOTE = ("fsspec", "remote", "spiders#Files")
_WARC = ("warcio", "warc", "spiders#Pages that are kept")
_OTEL = ("opentelemetry", "otel", "deploying#Traces")
_SOCKS = ("python_socks", "socks", "spiders#Proxies")
_ATTRIBUTES = {"selector": _PARSEL, "xpath": _PARSEL, "form": _FORMS}
_SWITCHES = {"browser": _BROWSER, "keep_bodies": _WARC, "trace": _OTEL}


class Missing:
    """Finds the first place of a file that needs each extra which is not installed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._needed: dict[tuple[str, str, str], tuple[int, str]] = {}

    def findings(self) -> Iterator[Finding]:
        """Yield a finding for each extra that is missing."""
        for (package, extra, guide), (line, what) in self._needed.items():
            if find_spec(package) is None:
                yield Finding(
                    path=self._path,
                    line=line,
                    what=f"{what} needs {package}, which is not installed",
                    instead=f"pip install 'crawlcw[{extra}]'",
                    guide=guide,
                )

    def look(self, node: ast.expr, owner: Known | None, walk: Walk) -> None:
        """See `Rule.look`."""
        match node:
            case ast.Attribute(attr=name) if owner is not None and owner.kind is Kind.RESPONSE:
                if name in _ATTRIBUTES:
                    self._need(_ATTRIBUTES[name], node, ast.unparse(node))
            case ast.Call():
                self._arguments(node, owner, walk)

    def _arguments(self, call: ast.Call, owner: Known | None, walk: Walk) -> None:
        dotted = walk.source.dotted(call.func)
        of_response = owner is not None and owner.kind is Kind.RESPONSE
        if not of_response and dotted not in ("crawlcw.Request", "crawlcw.Settings"):
            return
        for keyword in call.keywords:
            match keyword.arg, keyword.value:
                case ("browser" | "keep_bodies" | "trace") as name, ast.Constant(value=True):
                    self._need(_SWITCHES[name], keyword.value, f"{name}=True")
                case "save_to", ast.Constant(value=str(place)) if "://" in place:
                    self._need(_REMOTE, keyword.value, f"save_to={place!r}")
                case "proxy" | "proxies", value if "socks" in ast.unparse(value):
                    self._need(_SOCKS, value, f"{keyword.arg}= with SOCKS")

    def _need(self, extra: tuple[str, str, str], node: ast.expr, what: str) -> None:
        self._needed.setdefault(extra, (node.lineno, what))
