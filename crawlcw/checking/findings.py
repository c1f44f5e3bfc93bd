"""Findings of the checks: a place in a source file, and the code to write there."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Finding:
    """A mistake in a source file."""

    path: str
    line: int  #: from 1
    what: str  #: the code, or a sentence
    instead: str = ""  #: the code to write, if there is any
    guide: str = ""  #: page and heading of the manual: `spiders#Items`
    #: Whether the file cannot be loaded, or gives no spider, before this is corrected.
    stops: bool = False

    @property
    def message(self) -> str:
        """The finding in one line: the code, its replacement, the section of the manual."""
        said = f"{self.what} -> {self.instead}" if self.instead else self.what
        if not self.guide:
            return said
        page, _, heading = self.guide.partition("#")
        section = f'{page}, "{heading}"' if heading else page
        return f"{said} (guide {section})"


class Findings:
    """The findings about one file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.all: set[Finding] = set()

    def tell(
        self, line: int, what: str, instead: str = "", guide: str = "", *, stops: bool = False
    ) -> None:
        """Add a finding; see `Finding`."""
        found = Finding(
            path=self.path, line=line, what=what, instead=instead, guide=guide, stops=stops
        )
        self.all.add(found)
