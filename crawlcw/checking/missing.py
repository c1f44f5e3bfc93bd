"""Check for extras that a spider needs and that are not installed."""

import ast
from importlib.util import find_spec

from crawlcw.checking.bindings import Kind, Known, Walk
from crawlcw.checking.findings import Findings

#: Needed package, extra, and section of the manual.
_PARSEL = ("parsel", "xpath", "spiders#Responses")
_FORMS = ("parsel", "forms", "spiders#Forms")
_BROWSER = ("playwright", "browser", "browser")
_REMOTE = ("fsspec", "remote", "files")
_WARC = ("warcio", "warc", "warc")
_OTEL = ("opentelemetry", "otel", "deploying#Traces")
_SOCKS = ("python_socks", "socks", "proxies")
_ATTRIBUTES = {"selector": _PARSEL, "xpath": _PARSEL, "form": _FORMS}
_SWITCHES = {"browser": _BROWSER, "keep_bodies": _WARC, "trace": _OTEL}


class Missing:
    """Finds the first use of each extra that is not installed."""

    def __init__(self, found: Findings) -> None:
        self._found = found
        self._needed: set[str] = set()  #: extras

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

    def _need(self, needed: tuple[str, str, str], node: ast.expr, what: str) -> None:
        package, extra, guide = needed
        if extra not in self._needed and find_spec(package) is None:
            self._needed.add(extra)
            what = f"{what} needs {package}, which is not installed"
            self._found.tell(node.lineno, what, f"pip install 'crawlcw[{extra}]'", guide)
