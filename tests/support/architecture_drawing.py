"""The flowchart of ARCHITECTURE as SVG for the site, like the state diagrams.

The text has the boxes, the frame and the arrows; this module has their places. An arrow is
straight, so two boxes that it joins overlap in height or in width.
"""

import re
from html import escape
from typing import NamedTuple

from tests.support.state_drawing import drawing

_SIZE = (780, 385)
_LINE = 16  #: height of a label's line
_GAP = 3  #: between a box and the end of an arrow


class _Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def bottom(self) -> float:
        return self.top + self.height


_PLACES = {
    "seeds": _Box(10, 5, 105, 38),
    "ledger": _Box(10, 85, 105, 295),
    "process": _Box(222, 50, 438, 250),
    "coordinator": _Box(242, 95, 105, 44),
    "queues": _Box(408, 95, 72, 44),
    "fetchers": _Box(528, 95, 95, 44),
    "servers": _Box(712, 95, 66, 44),
    "committer": _Box(528, 175, 95, 44),
    "renewer": _Box(242, 242, 105, 44),
    "others": _Box(222, 335, 438, 44),
}


def svg(mermaid: str, *, title: str) -> str:
    """Return a Mermaid flowchart, whose boxes have a place here, as SVG within a page."""
    names = dict(re.findall(r'(\w+)\["(.*?)"\]', mermaid))
    frames = set(re.findall(r"subgraph (\w+)", mermaid))
    arrows = re.findall(r'(\w+)(?:\[".*?"\])? (<?)-->\|"?(.*?)"?\| (\w+)', mermaid)
    parts = [_frame(_PLACES[name], names[name]) for name in frames]
    parts += [
        _arrow(_PLACES[start], _PLACES[end], label.split("<br>"), both=bool(both))
        for start, both, label, end in arrows
    ]
    parts += [_box(_PLACES[name], text) for name, text in names.items() if name not in frames]
    sentences = (
        f"{names[start]} to {names[end]}: {label}".replace("<br>", " ")
        for start, _, label, end in arrows
    )
    return drawing("".join(parts), size=_SIZE, title=title, text="; ".join(sentences))


def _frame(box: _Box, text: str) -> str:
    return _rect(box, "frame") + _label(box.left + 12, box.top + 20, [text], "state left")


def _box(box: _Box, text: str) -> str:
    lines = text.split("<br>")
    x, y = box.left + box.width / 2, box.top + box.height / 2
    return _rect(box, "box") + _label(x, y - _LINE * (len(lines) - 1) / 2 + 5, lines, "state")


def _rect(box: _Box, kind: str) -> str:
    return (
        f'<rect class="{kind}" x="{box.left}" y="{box.top}" width="{box.width}" '
        f'height="{box.height}" rx="8"/>'
    )


def _label(x: float, y: float, lines: list[str], kind: str) -> str:
    return "".join(
        f'<text class="{kind}" x="{x:.0f}" y="{y + n * _LINE:.0f}">{escape(line)}</text>'
        for n, line in enumerate(lines)
    )


def _arrow(start: _Box, end: _Box, lines: list[str], *, both: bool) -> str:
    top, bottom = max(start.top, end.top), min(start.bottom, end.bottom)
    if top < bottom:
        y = (top + bottom) / 2
        first, last = _ends(start.left, start.right, end.left, end.right)
        path = f"M{first:.0f} {y:.0f}H{last:.0f}"
        label = _label(_middle(first, last), y - 8 - _LINE * (len(lines) - 1), lines, "event")
    else:
        x = (max(start.left, end.left) + min(start.right, end.right)) / 2
        first, last = _ends(start.top, start.bottom, end.top, end.bottom)
        path = f"M{x:.0f} {first:.0f}V{last:.0f}"
        label = _label(x + 8, (first + last) / 2 + 4, lines, "event left")
    starts = ' marker-start="url(#arrow)"' if both else ""
    return f'<path d="{path}"{starts} marker-end="url(#arrow)"/>{label}'


def _ends(
    start_low: float, start_high: float, end_low: float, end_high: float
) -> tuple[float, float]:
    """Return the ends of the gap between two spans, in the direction of the arrow."""
    if start_high < end_low:
        return start_high + _GAP, end_low - _GAP
    return start_low - _GAP, end_high + _GAP


def _middle(first: float, last: float) -> float:
    """Return the middle of the part of a line that is outside of the frame, or of all of it."""
    low, high = sorted((first, last))
    frame = _PLACES["process"]
    if low < frame.left < high:
        high = frame.left
    elif low < frame.right < high:
        low = frame.right
    return (low + high) / 2
