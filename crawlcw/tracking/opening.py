"""Something that is opened by `await`, or by `async with`, which closes it as well."""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

from crawlcw.ledger.shielding import run_shielded


class Closable(Protocol):
    """What can be closed."""

    async def close(self) -> None:
        """Let go of everything."""


C = TypeVar("C", bound=Closable)


class Opening(Generic[C]):
    """The tracker about to be opened."""

    def __init__(self, opening: Coroutine[Any, Any, C]) -> None:
        self._opening = opening
        self._opened: C | None = None

    def __await__(self) -> Generator[Any, Any, C]:
        return self._opening.__await__()

    async def __aenter__(self) -> C:
        self._opened = await self._opening
        return self._opened

    async def __aexit__(self, *_: object) -> None:
        assert self._opened is not None
        await run_shielded(self._opened.close())
