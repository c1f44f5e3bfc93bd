"""Layers of the user's own: those of the spider, and those that the settings name.

A name is `package.module:Layer`, or that of an entry point of the group `crawlcw.layers`. An
installed package only offers its layers: a crawl has none that neither names.
"""

import importlib
import inspect
from collections.abc import Iterable
from typing import Any

from crawlcw.api.attempt import Layer
from crawlcw.errors import SettingsError, SpiderError
from crawlcw.model.tracebacks import describe_error

GROUP = "crawlcw.layers"


def name_of(layer: Any) -> str:
    """Return the name of a layer: of its class, or of a function."""
    return str(getattr(layer, "__name__", type(layer).__name__))


def check(layers: object, kind: str) -> None:
    """Raise `SpiderError` where the layers of a spider of *kind* are no list of layers."""
    if not isinstance(layers, list | tuple):
        raise SpiderError(f"{kind}.layers is {layers!r}: make it a list of layers")
    for layer in layers:
        if (why := _refusal(layer)) is not None:
            raise SpiderError(f"{kind}.layers: {why}")


def loaded(names: Iterable[str]) -> list[Layer]:
    """Return the layers of the setting `layers`; raises `SettingsError` where one cannot be had."""
    return [_loaded(name) for name in names]


def _loaded(name: str) -> Layer:
    try:
        module, colon, attribute = name.partition(":")
        if colon:
            found: Any = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        else:
            from importlib.metadata import entry_points  # 8 ms, for the crawls that name one

            offered = {each.name: each for each in entry_points(group=GROUP)}
            if name not in offered:
                known = ", ".join(sorted(offered)) or "none is installed"
                raise SettingsError(
                    f"setting layers: {name!r} is neither package.module:Layer nor an entry "
                    f"point of {GROUP} ({known})"
                )
            found = offered[name].load()
        layer: Layer = found() if isinstance(found, type) else found
    except SettingsError:
        raise
    except Exception as error:  # the user's code may raise anything
        message = f"setting layers: {name!r} cannot be loaded: {describe_error(error)}"
        raise SettingsError(message) from error
    if (why := _refusal(layer)) is not None:
        raise SettingsError(f"setting layers: {name!r}: {why}")
    return layer


def _refusal(layer: Any) -> str | None:
    """Return why *layer* is no layer; None where it may be one."""
    wanted = "`async def __call__(self, attempt, request, call_next)`"
    if isinstance(layer, type):
        return f"{layer.__name__} is a class: write {layer.__name__}()"
    if not callable(layer):
        return f"{type(layer).__name__} is no layer: it needs {wanted}"
    try:
        inspect.signature(layer).bind(None, None, None)
    except (TypeError, ValueError):
        return f"{name_of(layer)} takes other arguments than a layer's: write {wanted}"
    if not any(map(inspect.iscoroutinefunction, (layer, type(layer).__call__))):
        return f"{name_of(layer)} is not `async`: write {wanted}"
    return None
