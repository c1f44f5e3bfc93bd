"""What becomes of suspects that run in disposable child processes.

A child works on one suspect at a time: it downloads and runs the spider's
methods, and that is all it does; lease, politeness, redirects, robots.txt and the
outcome stay with its parent. A suspect is convicted when the child dies while it
works on it and the parent lives, twice in a row under one lease: a child may be
killed by chance. Whatever the parent dies of says nothing of the suspect.

Children are few, and so a suspect for which none is free waits here, and keeps no
fetcher from other pages. Where no child can be started, suspects are the
`PoisonGuard`'s, and the limit of lost workers holds again.
"""

import logging
from collections import Counter
from collections.abc import Callable, Container
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.crawl.callbacks import Scope
from crawlcw.crawl.runner import Runner
from crawlcw.crawl.url_lists import WriteLinks
from crawlcw.downloader.credentials import Credentials
from crawlcw.downloader.protocol import Downloader
from crawlcw.engine.leases import HeldLeases
from crawlcw.errors import FetchError, Reason
from crawlcw.model.sanitize import printable
from crawlcw.model.task import Lease
from crawlcw.model.transitions import Failed, is_suspect, losses

logger = logging.getLogger(__name__)

#: A suspect is convicted by so many deaths of children.
_DEATHS = 2


class ChildDiedError(Exception):
    """A child died while it worked on a suspect; the text says how."""


class NoChildError(Exception):
    """No child could be started, which is no suspect's fault; the text says why."""


class Child(Protocol):
    """A child process, ready for one suspect."""

    def downloader(self, credentials: Credentials) -> Downloader:
        """Return what downloads in the child, with the spider's hooks and own downloader.

        *credentials* are sent with each request. A response's body stays there. Raises
        `ChildDiedError`, too.
        """

    def runner(
        self,
        *,
        scope: Scope,
        seen: Container[bytes],
        now: Callable[[], datetime],
        write: WriteLinks,
    ) -> Runner:
        """Return what runs methods in the child, on any response or on the one that is there.

        The arguments are those of `runner.InProcess`. Raises `ChildDiedError`, too.
        """


class Children(Protocol):
    """The children of this process."""

    @property
    def usable(self) -> bool:
        """Whether children can be started at all, as far as is known."""

    @property
    def free(self) -> bool:
        """Whether one is free, or may be started."""

    def one(self) -> AbstractAsyncContextManager[Child]:
        """Return a child for the block; leaving the block in the middle of something kills it.

        To be asked for where one is `free`. Raises `NoChildError`.
        """


class ChildDownloader:
    """The downloader of a child, and that of its parent for what the child may not connect to.

    Which hosts of start URLs may be at private addresses and odd ports only the parent knows. Files
    are saved by the parent: what comes of one is never parsed, and the deadlines of
    a long download are kept beside it.
    """

    def __init__(self, child: Downloader, parent: Downloader) -> None:
        self._child = child
        self._parent = parent

    async def fetch(self, request: Request, *, url: str) -> Response:
        """Return the response; see `Downloader`. Raises `ChildDiedError`, too."""
        if request.options.save_to is not None:
            return await self._parent.fetch(request, url=url)
        try:
            return await self._child.fetch(request, url=url)
        except FetchError as refusal:
            if refusal.reason not in (Reason.REFUSED_ADDRESS, Reason.REFUSED_PORT):
                raise
            return await self._parent.fetch(request, url=url)

    async def close(self) -> None:
        """Do nothing: both are others' to close."""


class Suspects:
    """The suspects of one process, and how its children fared with them."""

    def __init__(self, children: Children | None, held: HeldLeases, *, max_lost: int) -> None:
        """Without *children* no suspect is worked on here."""
        self._children = children
        self._held = held
        self._max_lost = max_lost
        self._deaths: Counter[tuple[bytes, int]] = Counter()
        self._waiting: list[Lease] = []

    @property
    def max_lost(self) -> int | None:
        """The limit of lost workers for claims; None: nothing is given up there."""
        return self._max_lost if self.children is None else None

    @property
    def children(self) -> Children | None:
        """The children, where they are of use."""
        return self._children if self._children is not None and self._children.usable else None

    def children_for(self, lease: Lease) -> Children | None:
        """Return the children where a task is for one of them."""
        return self.children if is_suspect(lease.task) else None

    def wait(self, lease: Lease) -> None:
        """Keep a suspect until a child is free."""
        self._waiting.append(lease)

    def waits(self, lease: Lease) -> bool:
        """Return whether a suspect is kept here."""
        return lease in self._waiting

    def take_waiting(self) -> list[Lease]:
        """Return the suspects that waited, where a child is free, and keep them no longer."""
        if not self._waiting or (self.children is not None and not self.children.free):
            return []
        waiting, self._waiting = self._waiting, []
        return [lease for lease in waiting if self._held.holds(lease)]

    def lost_too_often(self, lease: Lease) -> Failed | None:
        """Return the verdict on a suspect that is worked on here and not by a child.

        None as long as it may be: what no claim gives up, because there are children, is
        given up by the same limit.
        """
        lost = losses(lease.task)
        if lost < self._max_lost:
            return None
        message = f"{lost} workers were lost while they worked on nothing else"
        return Failed(reason=Reason.CRASHED_WORKER, message=message, last=True)

    def lived(self, lease: Lease) -> None:
        """Note that a child has lived through the work on a suspect."""
        self._deaths.pop((lease.task.id, lease.fence), None)

    def died(self, lease: Lease, death: ChildDiedError) -> Failed | None:
        """Note that a child died of a suspect; return the verdict, None where it is too early."""
        claim = (lease.task.id, lease.fence)
        self._deaths[claim] += 1
        how = printable(str(death))
        if self._deaths[claim] < _DEATHS:
            logger.info(
                "a process died while it worked on %s alone: %s; once more",
                printable(lease.task.url),
                how,
                extra={"event": "child_died", "url": lease.task.url},
            )
            return None
        del self._deaths[claim]
        logger.warning(
            "%s kills every process that works on it and is ignored: %s",
            printable(lease.task.url),
            how,
            extra={"event": "convicted", "url": lease.task.url},
        )
        message = f"{_DEATHS} processes died while they worked on it alone: {how}"
        return Failed(reason=Reason.CRASHED_WORKER, message=message, last=True)
