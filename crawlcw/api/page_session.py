"""The session that a page was asked for with, as its callback sees it."""

from collections.abc import Mapping
from typing import Any


class PageSession:
    """A session, by its `name` and the `data` that its login has left; "" where there is none."""

    def __init__(self, name: str = "", data: Mapping[str, Any] | None = None) -> None:
        self.name = name
        self.data: Mapping[str, Any] = data or {}
        #: Why the callback has retired it; None: it has not.
        self.retired: str | None = None

    def retire(self, reason: str = "the callback retired it") -> None:
        """Say that the session is of no use any more: it is logged in anew.

        Nothing of this page is recorded; it is fetched again with the new session.
        """
        self.retired = reason

    def __repr__(self) -> str:
        return f"<PageSession {self.name}>"
