"""Load a use case from a file or a module."""

from pathlib import Path
from types import ModuleType

from crawlcw.cli import loading
from crawlcw.errors import UsageError
from crawlcw.tracking import UseCase


def find(text: str) -> UseCase:
    """Return the use case that *text* names: `file.py`, `file.py:object`, `module:object`.

    Raises `UsageError`, which lists the use cases there are.
    """
    place, colon, name = text.rpartition(":") if ":" in text else (text, "", "")
    if loading.is_of_file(place):
        return _in_module(loading.load_file(Path(place)), name, place)
    if colon:
        return _in_module(loading.load_module(place), name, place)
    raise UsageError(
        f"{text!r} names no use case: give a file (orders.py or orders.py:orders), or "
        "package.module:object"
    )


def _in_module(module: ModuleType, name: str, place: str) -> UseCase:
    declared = {n: each for n, each in vars(module).items() if isinstance(each, UseCase)}
    names = ", ".join(declared)
    if name:
        if name in declared:
            return declared[name]
        has = f"its use cases: {names}" if names else "it has none"
        raise UsageError(f"{place} has no use case {name!r}; {has}")
    if not declared:
        raise UsageError(f"{place} has no use case: write `orders = crawlcw.tracking.UseCase(...)`")
    if len(declared) > 1:
        raise UsageError(
            f"{place} has several use cases ({names}): say which, as {place}:{next(iter(declared))}"
        )
    return next(iter(declared.values()))
