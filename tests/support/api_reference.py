"""Generator of the manual's page `api`, from the docstrings of the public names.

`python -m tests.support.api_reference` writes the page. Signatures are taken from the source,
since `inspect` prints annotations differently in different versions of Python.
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

PAGE = Path(__file__).parents[2] / "crawlcw" / "guide" / "api.md"
MODULES = ("crawlcw", "crawlcw.tracking", "crawlcw.testing", "crawlcw.errors")

_HEAD = """\
# API reference

Every public name: what it takes, what it promises and what it raises.

This page is made from the docstrings by `python -m tests.support.api_reference`. Names that are not
on it are internal and may change. The settings are on a page of their own: [settings](settings.md).
"""
#: Fields whose values are explained on the page of the settings.
_DESCRIBED_ELSEWHERE = {"Settings": "The fields are the [settings](settings.md)."}

#: An attribute that a constructor sets, with a documentation comment.
_ATTRIBUTE = re.compile(r" {8}self\.(?P<name>[a-z]\w*)\b.*?  #: (?P<about>.*)")

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    """Return the whole page."""
    shown: set[str] = set()
    parts = [_HEAD]
    for name in MODULES:
        parts += _module(importlib.import_module(name), shown)
    return "\n".join(parts)


def _module(module: ModuleType, shown: set[str]) -> Iterator[str]:
    yield f"## {module.__name__}\n"
    yield _module_docstring(module)
    elsewhere = []
    for name in public_names(module):
        if name in shown:
            elsewhere.append(f"`{name}`")
            continue
        shown.add(name)
        thing = getattr(module, name)
        if isinstance(thing, type):
            yield from _class(name, thing)
        elif get_args(thing):
            kinds = ", ".join(f"`{each.__name__}`" for each in get_args(thing))
            yield f"### {name}\n\nOne of {kinds}.\n"
        else:
            yield from _function(name, thing)
    if elsewhere:
        yield f"Described above: {', '.join(elsewhere)}.\n"


def _module_docstring(module: ModuleType) -> str:
    """Return the text of a module's docstring, with its drawings as blocks."""
    docstring = inspect.getdoc(module) or ""
    if module.__name__ != "crawlcw.errors":
        docstring = docstring.partition("\n\n")[0]
    return _markdown(docstring) + "\n"


def public_names(module: ModuleType) -> list[str]:
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
    # A context manager is a generator in the source, and used by `async with`.
    prefix = "async with " if "asynccontextmanager" in _decorators(node) else ""
    yield f"### {name}\n"
    yield f"```python\n{prefix}{_signature(node)}\n```\n"
    yield _markdown(ast.get_docstring(node) or "") + "\n"


def _class(name: str, kind: type) -> Iterator[str]:
    members = _members(kind)
    yield f"### {name}\n"
    constructor = members.functions.pop("__init__", None)
    if issubclass(kind, enum.Enum):
        constructor = None
    if constructor is not None:
        yield f"```python\n{_signature(constructor, called=name)}\n```\n"
    elif is_dataclass(kind) and name not in _DESCRIBED_ELSEWHERE:
        yield f"```python\n{name}({_arguments(kind, members)})\n```\n"
    bases = [base.__name__ for base in kind.__bases__ if base.__module__.startswith("crawlcw")]
    bases = [base for base in bases if issubclass(kind, BaseException)]
    if bases:
        yield f"A kind of `{bases[0]}`.\n"
    yield _markdown(inspect.cleandoc(kind.__doc__ or "")) + "\n"
    if issubclass(kind, enum.Enum):
        yield from _listed(_enumerated(kind))
        return
    if name in _DESCRIBED_ELSEWHERE:
        yield _DESCRIBED_ELSEWHERE[name] + "\n"
    else:
        yield from _listed(
            f"- `{field}`" + (f": {about}" if about else "")
            for field, about in members.fields.items()
        )
    yield from _methods(members)
    # A protocol whose fields are classes: a ledger and its facets.
    for facet, part in get_type_hints(kind).items() if getattr(kind, "_is_protocol", False) else ():
        if isinstance(part, type) and part.__module__.startswith("crawlcw."):
            yield f"#### {name}.{facet}\n"
            yield _markdown(inspect.cleandoc(part.__doc__ or "")) + "\n"
            yield from _methods(_members(part))


def _methods(members: "_Members") -> Iterator[str]:
    methods = {n: f for n, f in members.functions.items() if not n.startswith("_")}
    for function in methods.values():
        decorators = _decorators(function)
        docstring = _markdown(ast.get_docstring(function) or "")
        if "property" in decorators or "cached_property" in decorators:
            yield f"**`{function.name}`**\n"
        else:
            prefix = "async with " if "asynccontextmanager" in decorators else ""
            yield f"**`{prefix}{_signature(function)}`**\n"
        if docstring:
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


def _members(kind: type) -> _Members:
    found = _Members()
    for each in kind.__mro__:
        if not each.__module__.startswith("crawlcw"):
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


def _arguments(kind: type, members: _Members) -> str:
    """Return the fields of a dataclass as its constructor's arguments."""
    arguments = []
    keyword_only = False
    for parameter in inspect.signature(kind).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            arguments.append("*")
        declared = members.annotations[parameter.name]
        text = f"{parameter.name}: {ast.unparse(declared.annotation)}"
        if parameter.default is not parameter.empty:
            default = declared.value
            plain = default is not None and not isinstance(default, ast.Call)
            text += f"={ast.unparse(default)}" if plain and default else "=..."
        arguments.append(text)
    return ", ".join(arguments)


def _parsed(thing: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _decorators(node: _Function) -> set[str]:
    return {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list}


def _signature(node: _Function, *, called: str | None = None) -> str:
    """Return the call of a function, without `self`; *called* replaces its name."""
    arguments = ast.unparse(_without_self(node.args))
    yields = any(isinstance(each, ast.Yield) for each in ast.walk(node))
    awaited = isinstance(node, ast.AsyncFunctionDef) and not yields
    returns = f" -> {ast.unparse(node.returns)}" if node.returns and called is None else ""
    if "asynccontextmanager" in _decorators(node) or "contextmanager" in _decorators(node):
        returns = re.sub(r"(Async)?Iterator\[(.*)\]$", r"\2", returns)
    return f"{'await ' if awaited else ''}{called or node.name}({arguments}){returns}"


def _without_self(arguments: ast.arguments) -> ast.arguments:
    first = [*arguments.posonlyargs, *arguments.args][:1]
    if first and first[0].arg in ("self", "cls"):
        if arguments.posonlyargs:
            arguments.posonlyargs = arguments.posonlyargs[1:]
        else:
            arguments.args = arguments.args[1:]
    return arguments


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
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE} is written\n")
