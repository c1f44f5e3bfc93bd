"""The session that a page was asked for with, as its callback sees it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from crawlcw.model.values import FrozenDict


@dataclass(slots=True, eq=False, repr=False)
class PageSession:
    """A session, by its `name` and the `data` that its login has left; "" where there is none.

    The data is read-only: what pages learn is kept in `Spider.state`.
    """

    name: str = ""
    data: Mapping[str, Any] = field(default_factory=FrozenDict)
    retired: str | None = None  #: why the callback has retired it; None: it has not

    def retire(self, reason: str = "the callback retired it") -> None:
        """Say that the session is of no use any more: it is logged in anew.

        Nothing of this page is recorded; it is fetched again with the new session.
        """
        self.retired = reason

    def __repr__(self) -> str:
        return f"<PageSession {self.name}>"
