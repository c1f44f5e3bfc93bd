"""Run the handler of a task's stage in the event loop, in a thread, or in a process."""

import functools
import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any, TypeVar

import anyio
from anyio import CapacityLimiter, to_process, to_thread

from crawlcw.api.user_code import Called, calls_user_code, without_escape
from crawlcw.errors import UnwantedError
from crawlcw.model.sanitize import printable
from crawlcw.tracking.execution import Execution
from crawlcw.tracking.sync_calls import SyncExecution
from crawlcw.tracking.use_case import Executor, Handler

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def run_handler(
    handler: Handler,
    execution: Execution,
    *,
    threads: CapacityLimiter | None = None,
    processes: CapacityLimiter | None = None,
) -> None:
    """Run *handler*, and store its return value as the result of the stage in *execution*.

    Raises the handler's exceptions. An `UnwantedError` is not raised, but marks the task as
    ignored. If the worker loses the lease, a handler's coroutine is cancelled, and a handler's
    process is killed. A handler's thread continues, but the execution accepts no more changes from
    the thread.
    """
    try:
        result = await _result(handler, execution, threads=threads, processes=processes)
    except UnwantedError as error:
        if not execution.has_ended:
            await execution.ignore(str(error))
        return
    if result is None:
        return
    if not execution.has_ended:
        execution.result = result
    else:
        logger.warning(
            "stage %s returned a result after task %s had ended, so crawlcw dropped it: "
            "set execution.result before the end",
            execution.stage,
            printable(execution.key),
            extra={"event": "result_late", "key": execution.key, "stage": execution.stage},
        )


@calls_user_code
async def _result(
    handler: Handler,
    execution: Execution,
    *,
    threads: CapacityLimiter | None,
    processes: CapacityLimiter | None,
) -> Any:
    # The watchdog reads the variable `called` from the frame of this function.
    called = Called(name=execution.stage, subject=execution.key)
    match handler.executor:
        case Executor.LOOP:
            execution.note_user_code(called)
            return await handler.function(execution)
        case Executor.THREAD:
            execution.note_user_code(called)
            return await to_thread.run_sync(
                without_escape,
                handler.function,
                SyncExecution(execution, _from_thread),
                abandon_on_cancel=True,
                limiter=threads,
            )
        case Executor.PROCESS:
            # Cancelling `run_sync` kills the process. If the process dies, `run_sync` raises
            # BrokenWorkerProcess.
            function = handler.function
            return await to_process.run_sync(
                without_escape,
                _call,
                function.__module__,
                inspect.getsourcefile(function),
                function.__qualname__,
                (execution.key, execution.data, execution.context),
                cancellable=True,
                limiter=processes,
            )


def _from_thread(function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
    return anyio.from_thread.run(functools.partial(function, *args, **kwargs))


def _call(module: str, path: str | None, name: str, arguments: tuple[Any, ...]) -> Any:
    """Call the function *name* of *module*; this code runs in a child process of the worker.

    If *module* cannot be imported by its name, this function loads *module* from the file *path*.
    """
    target: Any = _load_module(module, path)
    for attribute in name.split("."):
        target = getattr(target, attribute)
    # Call the handler itself, because a decorator may have replaced the handler by a wrapper.
    return getattr(target, "__wrapped__", target)(*arguments)


def _load_module(name: str, path: str | None) -> ModuleType:
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
