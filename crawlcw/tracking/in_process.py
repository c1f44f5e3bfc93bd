"""Running a function in a process of its own, wherever it was loaded from.

A function travels to another process as the name of its module; but a file
that was loaded by its path is no module that the other one could import.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from anyio import CapacityLimiter, to_process

from crawlcw.api.user_code import raised, without_escape


async def run(
    function: Callable[..., Any],
    key: str,
    data: Mapping[str, Any],
    context: Mapping[str, Any],
    *,
    limiter: CapacityLimiter | None = None,
) -> Any:
    """Return what *function(key, data, context)* returns in another process.

    The process is killed where this is cancelled. Raises the exceptions that the function
    raises, and `anyio.BrokenWorkerProcess` where the process dies.
    """
    result = await to_process.run_sync(
        without_escape,
        _call,
        function.__module__,
        inspect.getsourcefile(function),
        function.__qualname__,
        (key, data, context),
        cancellable=True,
        limiter=limiter,
    )
    return raised(result)


def _call(module: str, path: str | None, name: str, arguments: tuple[Any, ...]) -> Any:
    found: Any = _loaded(module, path)
    for part in name.split("."):
        found = getattr(found, part)
    # A decorator may have left something else under the name.
    return getattr(found, "__wrapped__", found)(*arguments)


def _loaded(name: str, path: str | None) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if path is None:
            raise
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
