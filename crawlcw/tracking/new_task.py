"""A task to be added."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be added, see `Tracker.add`."""

    key: str
    data: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0  #: higher first
    stage: str | None = None  #: None: the use case's first
    context: Mapping[str, Any] | None = None
    delay: timedelta = timedelta(0)
