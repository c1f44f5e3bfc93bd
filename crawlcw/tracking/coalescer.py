"""One request for all callers that ask at the same time.

A caller that asks alone gets its answer immediately. Callers that ask meanwhile share one round
trip, instead of one each.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

#: Maximum number of questions in one request.
_MOST = 200


class Coalescer(Generic[Q, A]):
    """Runs one request at a time."""

    def __init__(self, ask: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]) -> None:
        """*ask* returns an answer to each question, in their order."""
        self._ask = ask
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._asking: asyncio.Task[None] | None = None

    def __call__(self, question: Q) -> asyncio.Future[A]:
        """Return a future with the answer, or with the error that *ask* raises."""
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_on())
        return answer

    async def finish(self) -> None:
        """Wait until all questions so far are answered."""
        if self._asking is not None:
            await asyncio.wait([self._asking])

    async def _ask_on(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                await self._answer(group)
        finally:
            self._asking = None

    async def _answer(self, group: Sequence[tuple[Q, "asyncio.Future[A]"]]) -> None:
        try:
            results = await self._ask([question for question, _ in group])
        except Exception as error:
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error)
                    # Read the error: all callers may be gone, and asyncio would report it.
                    answer.exception()
        else:
            for (_, answer), result in zip(group, results, strict=True):
                if not answer.done():
                    answer.set_result(result)
        finally:
            # An answer is still open only if this was cancelled, at the end of the loop.
            for _, answer in group:
                answer.cancel()
