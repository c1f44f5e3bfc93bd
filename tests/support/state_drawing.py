"""State diagrams of the manual as SVG for the site: Mermaid's script would come from another host.

The state with most transitions stands in the middle, the others around it in their order.
Colours are those of the site's theme.
"""

import math
import re
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 860, 600
_BOX = (120, 34)
_LINE = 15  #: height of a label's line
_END = "[*]"  #: Mermaid's name of the first and the last state


class _Point(NamedTuple):
    x: float
    y: float

    def moved(self, *, towards: "_Point", by: float) -> "_Point":
        length = math.dist(self, towards) or 1.0
        share = by / length
        return _Point(self.x + (towards.x - self.x) * share, self.y + (towards.y - self.y) * share)


Edges = dict[tuple[str, str], list[str]]  #: the events between two states


def svg(mermaid: str, *, title: str) -> str:
    """Return a Mermaid state diagram as SVG that stands within a page."""
    names = dict(re.findall(r"^ *(\w+): (.*)$", mermaid, re.MULTILINE))
    edges: Edges = {}
    for start, end, event in re.findall(r"(\S+) --> ([^\s:]+)(?:: (.*))?", mermaid):
        edges.setdefault((start, end), []).append(event)
    places = _places(list(names), edges)
    parts = [_edge(start, end, events, edges, places) for (start, end), events in edges.items()]
    parts += [_state(places[state], name) for state, name in names.items()]
    names[_END] = "start or end"
    sentences = (
        f"{names[start]} to {names[end]}: {', '.join(events) or 'ends'}"
        for (start, end), events in edges.items()
    )
    return drawing("".join(parts), size=(_WIDTH, _HEIGHT), title=title, text="; ".join(sentences))


def drawing(parts: str, *, size: tuple[int, int], title: str, text: str) -> str:
    """Return SVG elements as a drawing within a page; a screen reader reads *text*."""
    width, height = size
    return (
        f'<div class="drawing" tabindex="0"><svg viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}"><desc>{escape(text)}</desc>'
        '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z"/></marker>'
        f"{parts}</svg></div>"
    )


def _places(states: list[str], edges: Edges) -> dict[str, _Point]:
    middle = max(states, key=lambda state: sum(state in pair for pair in edges))
    around = [state for state in states if state != middle]
    places = {middle: _Point(_WIDTH / 2, _HEIGHT / 2)}
    for n, state in enumerate(around):
        angle = math.tau * (n / len(around) - 3 / 8)
        places[state] = _Point(
            _WIDTH / 2 + 0.48 * _WIDTH * math.cos(angle),
            _HEIGHT / 2 + 0.56 * _HEIGHT * math.sin(angle),
        )
    return places


def _state(place: _Point, name: str) -> str:
    width, height = _BOX
    return (
        f'<rect x="{place.x - width / 2:.0f}" y="{place.y - height / 2:.0f}" width="{width}" '
        f'height="{height}" rx="8"/>' + _label(place, [name], "state")
    )


def _label(place: _Point, lines: list[str], kind: str) -> str:
    top = place.y - _LINE * (len(lines) - 1) / 2 + 4
    return "".join(
        f'<text class="{kind}" x="{place.x:.0f}" y="{top + n * _LINE:.0f}">{escape(line)}</text>'
        for n, line in enumerate(lines)
    )


def _edge(start: str, end: str, events: list[str], edges: Edges, places: dict[str, _Point]) -> str:
    if _END in (start, end):
        return _outer(places[end if start == _END else start], events, begins=start == _END)
    if start == end:
        return _loop(places[start], events)
    one, other = places[start], places[end]
    middle = _Point((one.x + other.x) / 2, (one.y + other.y) / 2)
    if math.dist(middle, (_WIDTH / 2, _HEIGHT / 2)) < 1:
        bend = 0.52 * _HEIGHT  # around the state in the middle
    else:
        bend = 50.0 if (end, start) in edges else 0.0
    # To the left of the way, so that the two directions are apart.
    aside = _Point(middle.x + other.y - one.y, middle.y + one.x - other.x)
    bow = middle.moved(towards=aside, by=bend)
    first, last = _border(one, bow), _border(other, bow)
    path = f"M{first.x:.0f} {first.y:.0f}Q{bow.x:.0f} {bow.y:.0f} {last.x:.0f} {last.y:.0f}"
    # Not in the middle, where others cross.
    label = _Point(
        *(0.49 * a + 0.42 * b + 0.09 * c for a, b, c in zip(first, bow, last, strict=True))
    )
    return f'<path d="{path}" marker-end="url(#arrow)"/>' + _label(label, events, "event")


def _border(box: _Point, towards: _Point) -> _Point:
    """Return where the line from the middle of a box leaves it."""
    across, down = abs(towards.x - box.x), abs(towards.y - box.y)
    width, height = _BOX[0] / 2 + 3, _BOX[1] / 2 + 3
    share = min(width / across if across else math.inf, height / down if down else math.inf)
    return _Point(box.x + (towards.x - box.x) * share, box.y + (towards.y - box.y) * share)


def _loop(place: _Point, events: list[str]) -> str:
    side = 1 if place.y > _HEIGHT / 2 else -1
    edge, far = place.y + side * (_BOX[1] / 2 + 3), place.y + side * 62
    x = place.x
    path = (
        f"M{x - 18:.0f} {edge:.0f}"
        f"C{x - 36:.0f} {far:.0f} {x + 36:.0f} {far:.0f} {x + 18:.0f} {edge:.0f}"
    )
    label = _Point(x, far - side * 8)
    return f'<path d="{path}" marker-end="url(#arrow)"/>' + _label(label, events, "event")


def _outer(place: _Point, events: list[str], *, begins: bool) -> str:
    """Return the arrow from the first state, or to the last one, beside a box."""
    side = 1 if place.x > _WIDTH / 2 else -1
    y = place.y + (-9 if begins else 9)
    near, far = place.x + side * (_BOX[0] / 2 + 3), place.x + side * (_BOX[0] / 2 + 40)
    first, last = (far, near) if begins else (near, far - side * 6)
    kind = "start" if begins else "end"
    dot = f'<circle class="{kind}" cx="{far:.0f}" cy="{y:.0f}" r="5"/>'
    arrow = f'<path d="M{first:.0f} {y:.0f}H{last:.0f}" marker-end="url(#arrow)"/>'
    label = _label(_Point((near + far) / 2, y - 12), [event for event in events if event], "event")
    return dot + arrow + label
