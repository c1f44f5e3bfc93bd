"""Store a function of a project as a tag and plain parts, and find the function again.

A function is stored by its name. If it has none, such as a lambda, it is stored by the digest of
its code, with the values that it has captured. Nothing here imports a module. Only functions of the
spider's project are accepted, so a changed ledger cannot make a callback of `os.system`.
"""

import functools
import sys
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import scrapy
from scrapy.http.request import NO_CALLBACK


class Unstorable(Exception):
    """A request has a value that no ledger can store; the message says which in a few words."""


def name_of(thing: Any) -> str:
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
    return owner if name_of(owner) == name else None


def method_name(method: object, spider: scrapy.Spider) -> str | None:
    """Return the name of a method of *spider*, or None if *method* is another function."""
    owner: Any = type(spider)
    if (instance := getattr(method, "__self__", None)) is not spider and instance is not owner:
        return None
    name = _attribute_name(owner, getattr(method, "__func__", None))
    return None if name in vars(spider) else name


def method_of(owner: object, name: str) -> MethodType:
    """Return the method *name* of an object; raises `LookupError` if there is none."""
    method = None if name.startswith("__") else getattr(owner, name, None)
    if isinstance(method, MethodType) and (
        method.__self__ is owner or method.__self__ is type(owner)
    ):
        return method
    raise LookupError(f"{type(owner).__name__} has no method {name}")


def parts_of(function: Any, spider: scrapy.Spider) -> tuple[str, list[Any]]:
    """Return a tag, and parts from which `function_of` makes the function again.

    Raises `Unstorable`.
    """
    if function is NO_CALLBACK:
        return "@no_callback", []
    if isinstance(function, functools.partial):
        return "@partial", [function.func, list(function.args), function.keywords]
    if isinstance(function, MethodType):
        if (name := method_name(function, spider)) is not None:
            return "@method", [name]
        owner: Any = function.__self__
        name = _attribute_name(owner.__class__, function.__func__)
        for attribute, part in vars(spider).items():
            if part is owner and name is not None:
                return "@method", [name, attribute]
    if isinstance(function, type | FunctionType):
        name = name_of(function)
        if named(name) is function and _is_of_project(name, spider.__module__):
            return "@name", [name]
    if isinstance(function, FunctionType):
        code = function.__code__
        module, digest = function.__globals__.get("__name__", ""), _digest(code)
        name = f"{module}:{code.co_qualname}"
        if _is_of_project(name, spider.__module__) and digest in _codes(module):
            try:
                cells = [cell.cell_contents for cell in function.__closure__ or ()]
            except ValueError:
                raise Unstorable(f"{name}, which has a variable without a value") from None
            return "@code", [name, digest, cells, function.__defaults__, function.__kwdefaults__]
    raise Unstorable(f"{getattr(function, '__qualname__', type(function).__qualname__)}()")


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
        case "@name", [str(name)] if _is_of_project(name, spider.__module__):
            if (function := named(name)) is not None:
                return function
            raise LookupError(f"there is no {name}")
        case "@code", [str(name), digest, cells, defaults, keyword_defaults] if _is_of_project(
            name, spider.__module__
        ):
            module = name.partition(":")[0]
            if (code := _codes(module).get(digest)) is None:
                raise LookupError(f"the code of {name} has changed")
            closure = tuple(map(CellType, cells))
            function = FunctionType(code, vars(sys.modules[module]), None, defaults, closure)
            function.__kwdefaults__ = keyword_defaults
            return function
    raise ValueError(f"{tag} is not the tag of a value of the project")


@functools.lru_cache(maxsize=4096)
def _attribute_name(owner: type, function: object) -> str | None:
    """Return the attribute of the class that has *function*, perhaps under another name."""
    for name in (getattr(function, "__name__", ""), *dir(owner)):
        method = getattr(owner, name, None)
        if not name.startswith("__") and function is getattr(method, "__func__", method):
            return name
    return None


@functools.lru_cache(maxsize=1024)
def _is_of_project(name: str, spider_module: str) -> bool:
    """Return whether *name* is in a module that comes from the same folder as the spider's."""
    root = _root(name.partition(":")[0])
    return root is not None and root == _root(spider_module)


def _root(module: str) -> Path | None:
    """Return the folder from which Python has imported the top package of *module*."""
    path = getattr(sys.modules.get(module), "__file__", None)
    levels = module.count(".") + hasattr(sys.modules.get(module), "__path__")
    return Path(path).parents[levels] if path else None


@functools.cache
def _codes(module: str) -> Mapping[str, CodeType]:
    """Return all code of a module by its digest, with functions in functions and lambdas."""
    return {_digest(code): code for code in _all_code(module)}


def _all_code(module: str) -> Iterator[CodeType]:
    parts: list[Any] = list(vars(sys.modules[module]).values())
    visited_ids: set[int] = set()
    while parts:
        part = parts.pop()
        if id(part) in visited_ids:
            continue
        visited_ids.add(id(part))
        if isinstance(part, CodeType):
            yield part
            parts += part.co_consts
        elif isinstance(part, type):
            parts += vars(part).values() if part.__module__ == module else ()
        elif isinstance(part, FunctionType):
            parts.append(vars(part).get("__wrapped__"))  # the function below a decorator
            parts.append(part.__code__ if part.__globals__["__name__"] == module else None)
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
