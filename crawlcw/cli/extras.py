"""Tell the user which extra to install."""

from collections.abc import Iterator
from contextlib import contextmanager

from crawlcw.errors import UsageError


@contextmanager
def require(package: str, *, by: str, extra: str) -> Iterator[None]:
    """Run the imports in the block; if *package* is missing, tell the user to install *extra*.

    Raises `UsageError`, whose message begins with *by*, a text such as `the dashboard needs`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(package.replace("-", "_")):
            raise
        raise UsageError(
            f"{by} {package}: install it with `pip install 'crawlcw[{extra}]'`"
        ) from None
