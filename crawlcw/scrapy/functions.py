"""Store a function of a project as a tag and plain parts, and find the function again.

The parts are the function's name, or for a lambda the digest of its code and the values that it has
captured. Nothing here imports a module. `function_of` accepts only functions of the spider's
project, so that no changed ledger can make a callback of `os.system`.
"""

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import scrapy
from scrapy.http.request import NO_CALLBACK


class Unstorable(Exception):
    """A request has a value that no ledger can store; the message says which in a few words."""


def class_name(thing: Any) -> str:
    """Return the name under which `named` finds a class or a function."""
    return f"{thing.__module__}:{thing.__qualname__}"


def named(name: str) -> Any:
    """Return the class or the function that an imported module defines by *name*, or None."""
    module, _, path = name.partition(":")
    owner: Any = sys.modules.get(module)
    for part in path.split("."):
        # Read `__dict__`, because a module's `__getattr__` may import other modules.
        owner = getattr(owner, "__dict__", {}).get(part)
        owner = owner.__func__ if isinstance(owner, staticmethod) else owner
        if not isinstance(owner, type | FunctionType):
            return None
    return owner if class_name(owner) == name else None


def method_name(function: object, owner: object) -> str | None:
    """Return the name of *function* if it is a method of *owner*, else None."""
    if not isinstance(function, MethodType):
        return None
    kind: Any = type(owner)
    if function.__self__ is not owner and function.__self__ is not kind:
        return None
    name = _attribute_name(kind, function.__func__)
    return None if name in getattr(owner, "__dict__", ()) else name


def method_of(owner: object, name: str) -> MethodType:
    """Return the method *name* of *owner*; raises `LookupError` if there is none."""
    method = None if name.startswith("__") else getattr(owner, name, None)
    if not isinstance(method, MethodType) or method_name(method, owner) is None:
        raise LookupError(f"{type(owner).__name__} has no method {name}")
    return method


def parts_of(function: Any, spider: scrapy.Spider) -> tuple[str, list[Any]]:
    """Return a tag, and the parts from which `function_of` makes *function*.

    Raises `Unstorable`.
    """
    if function is NO_CALLBACK:
        return "@no_callback", []
    if isinstance(function, functools.partial):
        return "@partial", [function.func, list(function.args), function.keywords]
    if isinstance(function, MethodType):
        for attribute, owner in (("", spider), *vars(spider).items()):
            if function.__self__ is owner and (name := method_name(function, owner)):
                return "@method", [name, attribute] if attribute else [name]
    if isinstance(function, type | FunctionType) and "<" not in function.__qualname__:
        name = class_name(function)
        if named(name) is function and _is_of_project(function.__module__, spider):
            return "@name", [name]
    if isinstance(function, FunctionType):
        code, module = function.__code__, function.__globals__["__name__"]
        name, digest = f"{module}:{code.co_qualname}", _digest(code)
        if _is_of_project(module, spider) and digest in _codes(sys.modules[module]):
            try:
                cells = [cell.cell_contents for cell in function.__closure__ or ()]
            except ValueError:
                raise Unstorable(f"the function {name}, with a variable without value") from None
            return "@code", [name, digest, cells, function.__defaults__, function.__kwdefaults__]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    raise Unstorable(f"the function {name}, which the code of the project does not define")


def function_of(tag: str, parts: list[Any], spider: scrapy.Spider) -> Any:
    """Return the function of which `parts_of` has returned *tag* and *parts*.

    Raises `LookupError` if the project no longer has it, and `ValueError` for other parts.
    """
    match tag, parts:
        case "@no_callback", []:
            return NO_CALLBACK
        case "@partial", [function, list(arguments), dict(keywords)]:
            return functools.partial(function, *arguments, **keywords)
        case "@method", [str(name), *attribute]:
            return method_of(vars(spider)[attribute[0]] if attribute else spider, name)
        case ("@name", [str(name)]) | ("@code", [str(name), *_]):
            module = name.partition(":")[0]
            if _is_of_project(module, spider):
                return _code_function(module, *parts) if tag == "@code" else _existing(name)
    raise ValueError(f"{tag} is not the tag of a value of the project")


def _existing(name: str) -> Any:
    if (function := named(name)) is None:
        raise LookupError(f"there is no {name}")
    return function


def _code_function(
    module: str, name: str, digest: str, cells: list[Any], defaults: Any, keyword_defaults: Any
) -> FunctionType:
    if (code := _codes(sys.modules[module]).get(digest)) is None:
        raise LookupError(f"the code of {name} has changed")
    closure = tuple(map(CellType, cells))
    function = FunctionType(code, vars(sys.modules[module]), None, defaults, closure)
    function.__kwdefaults__ = keyword_defaults
    return function


@functools.lru_cache(maxsize=4096)
def _attribute_name(owner: type, function: FunctionType) -> str | None:
    """Return the attribute of the class that has *function*, perhaps under another name."""
    for name in (getattr(function, "__name__", ""), *dir(owner)):
        method = inspect.getattr_static(owner, name, None)
        if not name.startswith("__") and function is getattr(method, "__func__", method):
            return name
    return None


def _is_of_project(module: str, spider: scrapy.Spider) -> bool:
    """Return whether *module* comes from the same folder as the module of the spider."""
    root = _root(module)
    return root is not None and root == _root(spider.__module__)


def _root(name: str) -> Path | None:
    """Return the folder that has the top package of a module, and the code of its project."""
    module = sys.modules.get(name)
    path = getattr(module, "__file__", None)
    return _ancestor(path, name.count(".") + hasattr(module, "__path__")) if path else None


@functools.lru_cache(maxsize=1024)
def _ancestor(path: str, levels: int) -> Path:
    folders = Path(path).parents
    is_installed = folders[levels].name in {"site-packages", "dist-packages"}
    # Installed packages share one folder, so each of them counts as a project.
    return folders[levels - 1] if is_installed and levels else folders[levels]


@functools.cache
def _codes(module: ModuleType) -> Mapping[str, CodeType]:
    """Return all code of a module by its digest, with functions in functions and lambdas."""
    return {_digest(code): code for code in _all_code(module)}


def _all_code(module: ModuleType) -> Iterator[CodeType]:
    parts: list[Any] = list(vars(module).values())
    visited_ids: set[int] = set()
    while parts:
        part = parts.pop()
        if id(part) in visited_ids:
            continue
        visited_ids.add(id(part))
        if isinstance(part, CodeType):
            yield part
            parts += part.co_consts
        elif isinstance(part, type) and part.__module__ == module.__name__:
            parts += vars(part).values()
        elif isinstance(part, FunctionType):
            parts.append(vars(part).get("__wrapped__"))  # the function below a decorator
            parts.append(part.__code__ if part.__globals__ is vars(module) else None)
        elif isinstance(part, classmethod | staticmethod):
            parts.append(part.__func__)
        elif isinstance(part, property):
            parts += (part.fget, part.fset)


@functools.lru_cache(maxsize=4096)
def _digest(code: CodeType) -> str:
    constants = [
        _digest(part)
        if isinstance(part, CodeType)
        else repr(sorted(map(repr, part)) if isinstance(part, frozenset) else part)
        for part in code.co_consts
    ]
    names = (code.co_qualname, code.co_names, code.co_varnames, code.co_freevars, code.co_flags)
    content = repr((code.co_code, constants, names, code.co_argcount, code.co_kwonlyargcount))
    return blake2b(content.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
