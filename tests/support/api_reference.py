"""Generator of the manual's pages of the API, from the docstrings of the public names.

`python -m tests.support.api_reference` writes the pages: `api`, which lists the names, and a page
for each subject. Signatures are taken from the source, since `inspect` prints annotations
differently in different versions of Python.
"""

import ast
import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from crawlcw import Ledger

GUIDE = Path(__file__).parents[2] / "crawlcw" / "guide"
MODULES = ("crawlcw", "crawlcw.tracking", "crawlcw.testing", "crawlcw.errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A page of the reference: public names in the order in which a user meets them."""

    page: str
    title: str
    summary: str
    module: str  #: from which a program imports the names
    names: tuple[str, ...]


#: In the order in which a user meets them.
SUBJECTS = (
    Subject(
        page="api-spiders",
        title="Spiders and requests",
        summary="A `Spider` says which pages a crawl fetches; a `Request` is one of them.",
        module="crawlcw",
        names=("Spider", "Request", "Rule", "SitemapSpider", "SitemapEntry", "url_list"),
    ),
    Subject(
        page="api-responses",
        title="Responses and selectors",
        summary="A `Response` has the text of a page, its links, its forms and its selectors.",
        module="crawlcw",
        names=(
            *("Response", "SavedFile", "FeedEntry"),
            *("Css", "Re", "JsonLd", "XPath", "Extraction"),
        ),
    ),
    Subject(
        page="api-runs",
        title="Crawls and reports",
        summary="`run_spider` runs a crawl in your program and returns a `Report`.",
        module="crawlcw",
        names=(
            *("run_spider", "open_crawl", "Crawl", "Report", "FinishReason", "IdleReason"),
            *("Status", "add_pages", "AddedPages"),
        ),
    ),
    Subject(
        page="api-settings",
        title="Settings in a program",
        summary="`Settings` holds the settings of a crawl, and `Limit` those of one host.",
        module="crawlcw",
        names=("Settings", "Limit"),
    ),
    Subject(
        page="api-errors",
        title="Errors and reasons",
        summary="The errors that you raise or catch, and the reasons that the ledger stores.",
        module="crawlcw.errors",
        names=(
            *("DropItem", "StopCrawl", "Defer", "Reason", "CrawlcwError", "UsageError"),
            *("UnknownNameError", "SettingsError", "SpiderError", "InvalidItemError"),
            *("FetchError", "ProxyFailedError", "ProxiesAwayError", "ParseRefusedError"),
            *(
                "XmlError",
                "FilesUnwritableError",
                "LedgerError",
                "LedgerUnavailableError",
                "LedgerGoneError",
            ),
            *("LedgerConfigurationError", "LedgerKindError", "LedgerFormatError"),
            *("LeaseLostError", "UnwantedError", "TaskMissedError", "TaskNotFoundError"),
            *("TaskLockedError", "TaskNotDueError", "TaskFinishedError", "TaskIgnoredError"),
        ),
    ),
    Subject(
        page="api-layers",
        title="Layers, downloaders and feeds",
        summary="Classes that handle requests, send requests, or write items.",
        module="crawlcw",
        names=("Layer", "Next", "Attempt", "Downloader", "AiohttpDownloader", "FeedWriter"),
    ),
    Subject(
        page="api-testing",
        title="Test support",
        summary="Tests of spiders without a network, and of your own extensions.",
        module="crawlcw.testing",
        names=(
            *("ReplayDownloader", "Replay", "LayerContract", "DownloaderContract"),
            *("FeedContract", "CommandContract", "StoreContract"),
        ),
    ),
    Subject(
        page="api-tracking",
        title="Tracked tasks",
        summary="A `Tracker` keeps tasks that your own programs must do once.",
        module="crawlcw.tracking",
        names=(*("Tracker", "NewTask", "TrackedTask", "Page", "UseCase", "Policy", "SyncTracker"),),
    ),
    Subject(
        page="api-workers",
        title="Workers on tracked tasks",
        summary="A `Worker` calls your handlers; a `Dispenser` hands tasks to other programs.",
        module="crawlcw.tracking",
        names=(
            *("Worker", "WorkReport", "Execution", "SyncExecution", "Dispenser", "Assignment"),
            *("Ending", "Finish", "Advance", "Fail", "Ignore", "Release", "EndReport", "Refusal"),
            "RebuildReport",
        ),
    ),
    Subject(
        page="api-ledger",
        title="Ledgers and stores",
        summary="`open_ledger` opens the tasks of a spider; a store implements `Ledger`.",
        module="crawlcw",
        names=(
            *("open_ledger", "LedgerKind", "Ledger", "Ledger.tasks", "Ledger.leases"),
            *("Ledger.outcomes", "Ledger.hosts", "Ledger.host_leases", "Ledger.workers"),
        ),
    ),
    Subject(
        page="api-queries",
        title="Queries and changes of a ledger",
        summary="The parts of `Ledger` that the commands, the dashboard and the tracker use.",
        module="crawlcw",
        names=(
            *("Ledger.queries", "Ledger.groups", "Ledger.rates", "Ledger.admin", "Ledger.notes"),
            *(
                "Ledger.sessions",
                "Ledger.item_keys",
                "Ledger.spider_state",
                "Ledger.blobs",
                "Ledger.changes",
            ),
            "Ledger.inspection",
        ),
    ),
)

#: Classes with fields that another page explains.
_DESCRIBED_ELSEWHERE = {"Settings": "The fields are the [settings](settings.md)."}
#: Classes that only crawlcw makes objects of: their constructors are internal.
_MADE_BY_CRAWLCW = {
    *(
        "Assignment",
        "Attempt",
        "Crawl",
        "EndReport",
        "Execution",
        "Page",
        "RebuildReport",
        "Report",
    ),
    *("SyncExecution", "SyncTracker", "IdleReason", "TrackedTask", "Tracker"),
    *("WorkReport", "FeedEntry", "SavedFile", "Extraction"),
}
#: Members that only crawlcw uses, by their class.
_INTERNAL = {
    "AiohttpDownloader": ("exchange",),
    "Attempt": (
        *("kept_proxy", "deadline", "redirects", "url", "follows", "is_conditional"),
        *("accepts_file", "exchanges", "cleanup", "may_wait", "memory", "slot", "slot_host"),
        *("waits_for_memory", "keep", "free"),
    ),
    "Crawl": ("share_run", "on_end", "abandon", "stuck_in"),
    "Execution": ("note_user_code",),
    "Policy": ("of", "retries"),
    "Report": ("of",),
    "Request": (
        "refused",
        "of",
        "retargeted",
        "with_location",
        "plain_url",
        "identity",
        "locate",
        "task",
    ),
    "Response": ("trees", "source", "selector_kind", "field_sources", "invalid_item_reasons"),
    "Rule": ("requests",),
    "Settings": (
        *("deadlines", "retry_policy", "revisit_policy", "login_policy", "trap_policy"),
        "host_policy",
    ),
    "IdleReason": ("of", "fields"),
    "TrackedTask": ("of",),
    "UseCase": ("resolve_stage", "stored_stages", "next_stage"),
    "Worker": ("abandon", "stuck_in"),
}

_HEAD = """\
# API reference

Every public name with its arguments, results and errors.

Each subject has a page. All other names of the package are internal and may change.
"""
#: The widest line of a signature: it fits beside the site's navigation.
_WIDTH = 76

#: An attribute that a constructor sets, with a documentation comment.
_ATTRIBUTE = re.compile(r" {8}self\.(?P<name>[a-z]\w*)\b.*?  #: (?P<about>.*)")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def pages() -> dict[str, str]:
    """Return the text of each page by its name; a public name on no page is an error."""
    public = {name for module in MODULES for name in _public_names(importlib.import_module(module))}
    public |= {f"Ledger.{facet}" for facet in _facets(Ledger)}
    described = {name for subject in SUBJECTS for name in subject.names}
    assert public == described, f"not in SUBJECTS, or not public: {sorted(public ^ described)}"
    lines = [_HEAD, "| page | names |", "|---|---|"]
    for subject in SUBJECTS:
        names = ", ".join(f"`{name}`" for name in subject.names)
        lines.append(f"| [{subject.title}]({subject.page}.md) | {names} |")
    texts = {subject.page: "\n".join(_subject(subject)) for subject in SUBJECTS}
    return {"api": "\n".join(lines) + "\n", **texts}


def _introduction(subject: Subject) -> str:
    """Return the beginning of a page."""
    text = f"# {subject.title}\n\n{subject.summary}\n\nImport them from `{subject.module}`.\n"
    if subject.page == "api-errors":
        text += (
            "\n" + _markdown(inspect.getdoc(importlib.import_module(subject.module)) or "") + "\n"
        )
    return text


def _subject(subject: Subject) -> Iterator[str]:
    yield _introduction(subject)
    module = importlib.import_module(subject.module)
    for name in subject.names:
        thing = _facets(Ledger).get(name.removeprefix("Ledger.")) or getattr(module, name)
        if isinstance(thing, type):
            yield from _class(name, thing)
        elif get_args(thing):
            kinds = ", ".join(f"`{kind.__name__}`" for kind in get_args(thing))
            yield f"## {name}\n\nOne of {kinds}.\n"
        else:
            yield from _function(name, thing)


def _public_names(module: ModuleType) -> list[str]:
    """Return the public names of a module, in the order of the page."""
    names = getattr(module, "__all__", None)
    if names is not None:
        return sorted(names)
    return [
        name
        for name, thing in vars(module).items()
        if isinstance(thing, type)
        and thing.__module__ == module.__name__
        and not name.startswith("_")
    ]


def _function(name: str, function: Any) -> Iterator[str]:
    node = _parsed(inspect.unwrap(function))
    assert isinstance(node, _Function)
    yield f"## {name}\n"
    yield _code(_signature(node))
    yield _markdown(ast.get_docstring(node) or "") + "\n"


def _class(name: str, kind: type) -> Iterator[str]:
    public_base = next((base for base in kind.__bases__ if _is_described(base)), None)
    members = _members(kind, until=public_base)
    missing = set(_INTERNAL.get(name, ())) - {*members.functions, *members.fields}
    assert not missing, f"_INTERNAL[{name!r}] has no members {sorted(missing)}"
    yield f"## {name}\n"
    is_enumeration = issubclass(kind, enum.Enum)
    if constructor := _constructor(name, kind):
        yield _code(constructor)
    if public_base:
        more = "" if issubclass(kind, BaseException) else "; it has the members of that class too"
        yield f"A kind of `{public_base.__name__}`{more}.\n"
    yield _markdown(inspect.cleandoc(kind.__doc__ or "")) + "\n"
    if is_enumeration:
        yield from _listed(_enumerated(kind))
        return
    if name in _DESCRIBED_ELSEWHERE:
        yield _DESCRIBED_ELSEWHERE[name] + "\n"
    else:
        yield from _listed(
            f"- `{_declared(field, members)}`" + (f": {about}" if about else "")
            for field, about in members.fields.items()
            if not _is_internal(name, field) and f"- `{field}`:" not in (kind.__doc__ or "")
        )
    yield from _methods(name, members)


def _is_described(kind: type) -> bool:
    """Return whether a class has a section of the reference."""
    return any(
        kind.__name__ in subject.names for subject in SUBJECTS
    ) and kind.__module__.startswith("crawlcw")


def _is_internal(kind: str, member: str) -> bool:
    """Return whether only crawlcw uses a member of the class *kind*."""
    if member.startswith(("_", "test_")):
        return member != "__call__"
    return member in _INTERNAL.get(kind, ())


def _facets(kind: type) -> dict[str, type]:
    """Return the fields of a protocol that are classes: a ledger has its methods on facets."""
    hints = get_type_hints(kind) if getattr(kind, "_is_protocol", False) else {}
    return {
        name: part
        for name, part in hints.items()
        if isinstance(part, type) and part.__module__.startswith("crawlcw.")
    }


def _constructor(name: str, kind: type) -> str:
    """Return the call that makes an object of a class; empty if users make none."""
    if name in _MADE_BY_CRAWLCW or issubclass(kind, enum.Enum):
        return ""
    members = _members(kind)
    if node := members.functions.get("__init__"):
        return _signature(node, called=name)
    if is_dataclass(kind) and name not in _DESCRIBED_ELSEWHERE:
        return _call(name, _arguments(kind, members))
    return ""


def _declared(name: str, members: "_Members") -> str:
    """Return a field with its type, if it is declared."""
    declaration = members.annotations.get(name)
    if declaration is None:
        return name
    annotation = _annotation(declaration.annotation)
    class_variable = re.fullmatch(r"ClassVar\[(.*)\]", annotation)
    return f"{name}: {class_variable[1] if class_variable else annotation}"


def _methods(kind: str, members: "_Members") -> Iterator[str]:
    for function in members.functions.values():
        if _is_internal(kind, function.name):
            continue
        heading = f"{kind}.{function.name}".replace("__", r"\_\_")
        yield f"### {heading}\n"
        if not {"property", "cached_property"} & _decorators(function):
            yield _code(_signature(function))
        elif function.returns:
            yield _code(f"{function.name}: {_annotation(function.returns)}")
        if docstring := _markdown(ast.get_docstring(function) or ""):
            yield docstring + "\n"


def _enumerated(kind: type[enum.Enum]) -> Iterator[str]:
    """Yield a line for each member of an enumeration, with its comment."""
    lines = inspect.getsource(kind).splitlines()
    for each in kind:
        line = next(line for line in lines if line.strip().startswith(f"{each.name} = "))
        about = line.partition("#: ")[2]
        yield f"- `{each.name}` = `{each.value}`" + (f": {about}" if about else "")


def _listed(lines: Iterator[str]) -> Iterator[str]:
    text = "\n".join(lines)
    if text:
        yield text + "\n"


@dataclass
class _Members:
    """Members of a class and of its bases in crawlcw, the class's own first."""

    fields: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, ast.AnnAssign] = field(default_factory=dict)
    functions: dict[str, _Function] = field(default_factory=dict)


def _members(kind: type, *, until: type | None = None) -> _Members:
    """Return the members of a class and of its bases, but without those of *until*."""
    found = _Members()
    inherited = until.__mro__ if until else ()
    for each in kind.__mro__:
        if each in inherited or not each.__module__.startswith("crawlcw"):
            continue
        node = _parsed(each)
        assert isinstance(node, ast.ClassDef)
        for member in node.body:
            if isinstance(member, _Function) and "overload" not in _decorators(member):
                found.functions.setdefault(member.name, member)
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                found.annotations.setdefault(member.target.id, member)
        for name, about in _fields(each, node):
            found.fields.setdefault(name, about)
    return found


def _fields(kind: type, node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the fields that a class declares, with the comment on or above each."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    for line in lines:
        attribute = _ATTRIBUTE.match(line)
        if attribute:
            yield attribute["name"], attribute["about"]
    for n, member in enumerate(node.body):
        if not isinstance(member, ast.AnnAssign) or not isinstance(member.target, ast.Name):
            continue
        name = member.target.id
        if name.startswith("_"):
            continue
        assert member.end_lineno is not None
        beside = lines[member.end_lineno - 1].partition("#: ")[2]
        above = []
        for line in reversed(lines[: member.lineno - 1]):
            if not line.strip().startswith("#: "):
                break
            above.insert(0, line.strip().removeprefix("#: "))
        below = ""
        following = node.body[n + 1] if n + 1 < len(node.body) else None
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            below = str(following.value.value)
        yield name, beside or " ".join(above) or below or _setting(member.value)


def _setting(value: ast.expr | None) -> str:
    """Return the purpose of a setting, from its declaration: `Count(3, "attempts")`."""
    if not isinstance(value, ast.Call) or len(value.args) < 2:
        return ""
    default, about = value.args[:2]
    if not isinstance(about, ast.Constant):
        return ""
    return f"{about.value}; default: {ast.unparse(default)}"


def _arguments(kind: type, members: _Members) -> list[str]:
    """Return the fields of a dataclass as its constructor's arguments."""
    arguments = []
    keyword_only = False
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            arguments.append("*")
        declared = members.annotations[parameter.name]
        text = f"{parameter.name}: {_annotation(declared.annotation)}"
        if parameter.default is not parameter.empty:
            default = declared.value
            plain = default is not None and not isinstance(default, ast.Call)
            text += f" = {ast.unparse(default)}" if plain and default else " = ..."
        arguments.append(text)
    return arguments


def _code(text: str) -> str:
    return f"```python\n{text}\n```\n"


def _call(called: str, arguments: list[str], returns: str = "") -> str:
    """Return a call on one line, or with a line for each argument if it is long."""
    line = f"{called}({', '.join(arguments)}){returns}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{called}(", *(f"    {each}," for each in arguments), f"){returns}"])


def _parsed(thing: Any) -> ast.AST:
    """Return the syntax tree of a class or function, with values for constants as defaults."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    constants = vars(sys.modules[thing.__module__])
    for node in ast.walk(tree):
        if isinstance(node, ast.arguments):
            for default in (*node.defaults, *node.kw_defaults):
                if isinstance(default, ast.Name):
                    # `ast.unparse` prints the text of a name unchanged.
                    default.id = repr(constants[default.id]).removeprefix("datetime.")
    return tree


def _annotation(node: ast.expr) -> str:
    """Return a type as text, without the quotes of a type that is defined later."""
    is_quoted = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if is_quoted else ast.unparse(node)


def _decorators(node: _Function) -> set[str]:
    return {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}


def _signature(node: _Function, *, called: str | None = None) -> str:
    """Return the call of a function, without `self`; *called* replaces its name."""
    decorators = _decorators(node)
    yields = any(isinstance(each, ast.Yield) for each in ast.walk(node))
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) and not yields else ""
    returns = f" -> {_annotation(node.returns)}" if node.returns and called is None else ""
    if {"asynccontextmanager", "contextmanager"} & decorators:
        # A context manager is a generator in the source, and used by `with`.
        prefix = "async with " if "asynccontextmanager" in decorators else "with "
        returns = re.sub(r"(Async)?Iterator\[(.*)\]$", r"\2", returns)
    return _call(prefix + (called or node.name), _parameters(node.args), returns)


def _parameters(arguments: ast.arguments) -> list[str]:
    """Return each parameter with its type and default, without `self`."""
    positional = [*arguments.posonlyargs, *arguments.args]
    first_default = len(positional) - len(arguments.defaults)
    defaults = [None] * first_default + arguments.defaults
    shown = [_parameter(each, value) for each, value in zip(positional, defaults, strict=True)]
    if arguments.posonlyargs:
        shown.insert(len(arguments.posonlyargs), "/")
    if positional and positional[0].arg in ("self", "cls"):
        shown = shown[2:] if shown[1:2] == ["/"] else shown[1:]
    if arguments.vararg:
        shown.append(f"*{_parameter(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        shown.append("*")
    for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        shown.append(_parameter(each, value))
    if arguments.kwarg:
        shown.append(f"**{_parameter(arguments.kwarg, None)}")
    return shown


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    text = parameter.arg
    if parameter.annotation:
        text += f": {_annotation(parameter.annotation)}"
    if default is None:
        return text
    return text + (" = " if parameter.annotation else "=") + ast.unparse(default)


def _markdown(docstring: str) -> str:
    """Return a docstring with its examples and drawings as blocks of code."""
    blocks = []
    for paragraph in docstring.split("\n\n"):
        lines = paragraph.splitlines()
        if lines and all(line.startswith("    ") or not line for line in lines):
            blocks.append(f"```\n{textwrap.dedent(paragraph)}\n```")
        else:
            # A tag such as <base> is text, outside code.
            parts = re.split(r"(`[^`]*`)", paragraph)
            blocks.append("".join(p if p[:1] == "`" else p.replace("<", "&lt;") for p in parts))
    return "\n\n".join(blocks)


if __name__ == "__main__":
    for page, text in pages().items():
        (GUIDE / f"{page}.md").write_text(text, encoding="utf-8")
    sys.stdout.write(f"The pages of the API in {GUIDE} are written\n")
