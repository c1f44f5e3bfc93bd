"""What a command needs of an extra: one sentence where that is not installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from crawlcw.errors import UsageError


@contextmanager
def needed(package: str, *, by: str, extra: str) -> Iterator[None]:
    """Import within the block what *by* needs *package* for: `the dashboard needs`.

    Raises `UsageError`, which names the *extra*, where the package is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith(package.replace("-", "_")):
            raise
        raise UsageError(
            f"{by} {package}: install it with `pip install 'crawlcw[{extra}]'`"
        ) from None
