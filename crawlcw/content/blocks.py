"""Write blocks of Markdown (paragraphs, fences, tables) inside of quotes and list items."""

from collections.abc import Sequence
from dataclasses import dataclass

#: Maximum nesting of quotations and lists; the blocks of deeper ones have no marks of their own.
#: Each line repeats the marks of all its containers, so the limit keeps the output linear.
_MAX_DEPTH = 16
_LONGEST_NUMBER = 999_999_999  # of CommonMark
#: The limit of cells that `rowspan` and `colspan` add to a table, for each cell of the page.
_SPANNED_PER_CELL = 4
_MAX_REPEATED_CHARACTERS = 100


@dataclass(slots=True)
class _Container:
    first: str  #: what begins its first line
    rest: str  #: what begins its other lines
    is_tight: bool  #: whether no blank line stands before its first block
    is_item: bool


@dataclass(slots=True)
class ListState:
    """A list that is being written."""

    depth: int  #: the number of containers around the list
    number: int | None  #: the number of the next item; None for bullets
    mark: str  #: what stands in front of an item: `-` or `*`, or `.` or `)` behind its number
    is_tight: bool  #: whether its items have no blank lines between them
    start: int  #: the number of lines in front of the list

    def next_mark(self) -> str:
        """Return what begins the next item."""
        if self.number is None:
            return f"{self.mark} "
        self.number += 1
        return f"{min(self.number - 1, _LONGEST_NUMBER)}{self.mark} "


class BlockWriter:
    """Writes blocks, each in the containers that are open; an empty container is not written."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._containers: list[_Container] = []
        #: What begins each further line of the containers that have a block, by their number.
        self._prefixes = [""]
        self._closed_list: tuple[int, bool, str] | None = None

    @property
    def depth(self) -> int:
        """The number of open containers."""
        return len(self._containers)

    @property
    def is_at_start(self) -> bool:
        """Whether the innermost container has no block yet."""
        return len(self._prefixes) <= len(self._containers)

    def open(self, first: str, rest: str, *, is_tight: bool = False, is_item: bool = False) -> None:
        """Open a container, whose first line begins with *first*, and each further with *rest*."""
        if self.depth >= _MAX_DEPTH:
            first = rest = ""
        self._containers.append(_Container(first, rest, is_tight, is_item))

    def close_to(self, depth: int) -> None:
        """Close the innermost containers until *depth* of them are open."""
        del self._containers[depth:]
        del self._prefixes[depth + 1 :]

    def write(self, lines: Sequence[str]) -> None:
        """Write a block."""
        count = len(self._prefixes) - 1
        unused = self._containers[count:]
        prefix = self._prefixes[-1]
        if self.lines and not (unused and unused[0].is_tight):
            self.lines.append(prefix.rstrip())
        first = prefix
        for container in unused:
            first += container.first.replace("\n", f"\n{prefix}")
            prefix += container.rest
            self._prefixes.append(prefix)
        self.lines.append((first + lines[0]).rstrip() if not lines[0] else first + lines[0])
        blank = prefix.rstrip()
        self.lines += [prefix + line if line else blank for line in lines[1:]]
        self._closed_list = None

    def begin_list(self, *, number: int | None, is_tight: bool) -> ListState:
        """Return the state of a list; two lists that follow one another have different marks."""
        mark, other = ("-", "*") if number is None else (".", ")")
        if self._closed_list == (self.depth, number is None, mark):
            mark = other
        return ListState(self.depth, number, mark, is_tight, len(self.lines))

    def end_list(self, state: ListState) -> None:
        """Close the last item of a list."""
        self.close_to(state.depth)
        if len(self.lines) > state.start:
            self._closed_list = (state.depth, state.number is None, state.mark)

    def begin_item(self, state: ListState) -> None:
        """Close the last item of a list, and open the next."""
        self.close_to(state.depth)
        begins_at_one = state.number is None or state.number == 1
        # CommonMark begins a list behind a text without a blank line only if its number is 1.
        is_nested = (
            state.depth > 0
            and self._containers[-1].is_item
            and begins_at_one
            and not self.is_at_start
        )
        is_tight = state.is_tight and (len(self.lines) > state.start or is_nested)
        mark = state.next_mark()
        self.open(mark, " " * len(mark), is_tight=is_tight, is_item=True)


class Table:
    """The cells of a table, row by row."""

    def __init__(self) -> None:
        self._rows: list[list[tuple[str, int, int]]] = []
        self._has_header = False

    def begin_row(self) -> None:
        """Begin the next row."""
        self._rows.append([])

    def add(self, text: str, *, columns: int, rows: int, is_header: bool) -> None:
        """Add a cell to the last row, with its Markdown, over a number of *columns* and *rows*."""
        if not self._rows:
            self.begin_row()
        if len(self._rows) == 1:
            self._has_header = is_header and (self._has_header or not self._rows[0])
        self._rows[-1].append((text.replace("|", "\\|"), columns, rows))

    def lines(self) -> list[str]:
        """Return the table as lines; no lines if it has no text.

        A cell over several rows stands in each of them, if its text is short. A cell over several
        columns has empty cells behind it.
        """
        rows = self._resolved()
        width = max(map(len, rows), default=0)
        header = rows.pop(0) if rows and self._has_header else []
        rows = [row for row in rows if any(row)]
        if not rows and not any(header):
            return []
        header += [""] * (width - len(header))
        return [_row(header), _row(["---"] * width), *map(_row, rows)]

    def _resolved(self) -> list[list[str]]:
        budget = _SPANNED_PER_CELL * sum(map(len, self._rows)) + 100
        from_above: dict[int, tuple[str, int]] = {}  # by column: a text, and its further rows
        result: list[list[str]] = []
        for row in filter(None, self._rows):
            if budget <= 0:
                from_above = {}
            cells: list[str] = []
            below: dict[int, tuple[str, int]] = {}

            for text, columns, rows in row:
                _fill(cells, from_above, below)
                repeated = text if len(text) <= _MAX_REPEATED_CHARACTERS else ""
                columns = min(columns, 1 + max(budget, 0))
                budget -= columns - 1
                for offset in range(columns):
                    if rows > 1 and budget > 0:
                        below[len(cells)] = ("" if offset else repeated, rows - 1)
                    cells.append("" if offset else text)
            _fill(cells, from_above, below)
            budget -= len(below)
            from_above = below
            result.append(cells)
        return result


def _fill(
    cells: list[str], from_above: dict[int, tuple[str, int]], below: dict[int, tuple[str, int]]
) -> None:
    """Add the cells that reach into this row from above, up to the next free column."""
    while (column := len(cells)) in from_above:
        text, further_rows = from_above.pop(column)
        cells.append(text)
        if further_rows > 1:
            below[column] = (text, further_rows - 1)


def _row(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|"
