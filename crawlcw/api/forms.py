"""Fill in a form of a page, and make the request that a browser would send for it.

All fields of a form, also hidden fields, have the values from the page. The HTML standard defines
which fields are sent ("constructing the entry list") and how ("form submission algorithm"). This
module sends no files, and submits no form in a dialog; a spider must make such requests itself.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Literal
from urllib.parse import quote_plus

from selectolax.lexbor import LexborNode

from crawlcw.api import charset
from crawlcw.api.markup import OWNER
from crawlcw.api.request import Callback, Request
from crawlcw.errors import FetchError
from crawlcw.model import urls

#: The value of a field: a text, several texts for a field with several values, or None.
FieldValue = str | int | float | Iterable[str] | None
#: A name and a value that a form sends.
_Entry = tuple[str, str]

_CONTROLS = frozenset({"button", "input", "select", "textarea"})
_NO_SUBMIT_BUTTONS = frozenset({"button", "reset"})
_BUTTONS = _NO_SUBMIT_BUTTONS | {"submit", "image"}
#: Kinds of input whose value is not a single line of text.
_NOT_ONE_LINE = frozenset({"hidden", "checkbox", "radio", "submit", "image"})
_DIRECTIONS = {"L": "ltr", "R": "rtl", "AL": "rtl"}
_SPACE = " \t\n\f\r"
_LINE_END = re.compile(r"\r\n?|\n")
#: A word and the spaces after the word; a line may also break after a hyphen or a slash.
_WORD = re.compile(r"\S+?(?:[-/](?=[^\W\d_])|(?!\S))\s*|\s+")
_INTEGER = re.compile(r"[ \t\n\f\r]*\+?(\d{1,9})", re.ASCII)
_NUMBER = re.compile(r"-?(?:\d+(?:\.\d+)?|\.\d+)(?:e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
_OVERFLOW_NUMBER = Decimal("1.8e308")
_COLOR = re.compile(r"#(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})", re.IGNORECASE)
_DAY = r"(?P<year>\d{4,6})-(?P<month>0[1-9]|1[0-2])-(?P<day>\d\d)"
_TIME = r"(?P<minute>(?:[01]\d|2[0-3]):[0-5]\d)(?P<second>:[0-5]\d(?:\.\d{1,3})?)?"
_DATE_PATTERNS = {
    "date": re.compile(_DAY, re.ASCII),
    "month": re.compile(r"(?P<year>\d{4,6})-(?:0[1-9]|1[0-2])", re.ASCII),
    "week": re.compile(r"(?P<year>\d{4,6})-W(?P<week>\d\d)", re.ASCII),
    "time": re.compile(_TIME, re.ASCII),
    "datetime-local": re.compile(rf"{_DAY}[T ]{_TIME}", re.ASCII),
}
_CHROMIUM_NAMES = {"big5": "Big5", "shift_jis": "Shift_JIS"}
#: Kinds of <input> for which a form sends no text direction.
_WITHOUT_DIRECTION = {
    *_DATE_PATTERNS,
    "checkbox",
    "color",
    "file",
    "image",
    "number",
    "radio",
    "range",
}
#: Values of a form's `enctype` that this module does not support.
_UNSUPPORTED_ENCODINGS = frozenset({"multipart/form-data", "text/plain"})
_ENCODED = "application/x-www-form-urlencoded"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Form:
    """A form that can be submitted, with the values from its page."""

    node: LexborNode  #: the <form>, in a tree made with `with_form_owners`
    page_url: str
    base_url: str  #: the base URL of the page's links
    encoding: str  #: the name of the page's encoding in the Encoding Standard
    callback: Callback | None
    click: str | Literal[False] | None  #: see `Response.form`
    options: dict[str, Any]  #: options of the `Request`

    @property
    def fields(self) -> dict[str, Any]:
        """The values that the form's fields have in the page, by name.

        A field's value is None if nothing is selected, and a list if a name has several values.
        """
        controls = [control for control in _controls_of(self.node) if not control.is_button]
        values: dict[str, list[str]] = {control.name: [] for control in controls if control.name}
        for name, value in _entries(controls, None, field_values={}, encoding=self.encoding):
            values.setdefault(name, []).append(value)
        return {
            name: texts[0] if len(texts) == 1 else texts or None for name, texts in values.items()
        }

    def submit(
        self, fields: Mapping[str, FieldValue] | None = None, /, **named: FieldValue
    ) -> Request:
        """Return the request of the form, filled in with *fields* and the keyword arguments.

        A value of None leaves its field out. The clicked button sends its own name and value,
        unless the arguments have a value for the button's name. Text is sent in the encoding of the
        page. If the form's URL cannot be fetched, the crawl drops and counts the request. Raises
        `ValueError` for a form that sends files, and for a missing button.
        """
        form_attributes = self.node.attributes
        controls = _controls_of(self.node)
        button = self._button(controls)

        def attribute_of(name: str) -> str:
            of_button = None if button is None else button.attributes.get(f"form{name}")
            return of_button or form_attributes.get(name) or ""

        method, enctype = attribute_of("method").lower(), attribute_of("enctype").lower()
        if method == "dialog" or (method == "post" and enctype in _UNSUPPORTED_ENCODINGS):
            raise ValueError(
                "submit() cannot send a form with files, as plain text or in a dialog: write a "
                "Request instead"
            )
        labels = (form_attributes.get("accept-charset") or "").replace(",", " ").split()
        encoding = next(filter(None, map(charset.named, labels)), self.encoding)
        values = {**(fields or {}), **named}
        encoded = _form_encoded(
            _entries(controls, button, field_values=values, encoding=encoding), encoding
        )
        action = attribute_of("action").strip()
        options = self.options
        if method == "post":
            options = {"headers": [("Content-Type", _ENCODED)], **options}
            options |= {"method": "POST", "body": encoded}
        try:
            # A form without an action goes to its page, even if the page has a <base>.
            url = urls.resolve(self.base_url if action else self.page_url, action)
        except FetchError as refusal:
            return Request.refused(action, refusal, self.callback, **options)
        if method != "post":
            # The URL has a `?` even if the query is empty (HTML, "mutate action URL").
            url = f"{url.partition('?')[0]}?{encoded.decode()}"
        return Request(url, self.callback, **options)

    def _button(self, controls: "list[_Control]") -> "_Control | None":
        """Return the button that is clicked, or None."""
        if self.click is False:
            return None
        if self.click is None:
            for control in controls:
                is_submit = control.is_button and control.kind not in _NO_SUBMIT_BUTTONS
                if is_submit and not control.is_disabled:
                    return control
            return None
        # Search the whole page, because a button outside of the form may belong to it.
        button_ids = {node.mem_id for node in self.node.parser.css(self.click)}
        for control in controls:
            if control.node.mem_id in button_ids:
                return control
        raise ValueError(f"the form has no button {self.click!r}")


class _Control:
    """A control (field or button) of a form."""

    def __init__(
        self, node: LexborNode, attributes: dict[str, str | None], *, is_off: bool, direction: str
    ) -> None:
        self.node, self.attributes = node, attributes
        self.is_disabled = is_off or "disabled" in attributes
        self.direction = direction  #: of text
        self.tag = node.tag
        self.name = attributes.get("name") or ""
        self.kind = (attributes.get("type") or "").lower()
        self.is_button = self.tag == "button" or (self.tag == "input" and self.kind in _BUTTONS)


def _controls_of(form: LexborNode) -> list[_Control]:
    """Return the controls of a form, in the order of the page."""
    form_attributes, root, controls = form.attributes, form.parser.root, list[_Control]()
    assert root is not None, "it is the element above the form"
    number, form_id = form_attributes.get(OWNER), form_attributes.get("id")
    # If several elements have the same id, the attribute `form` means the first element.
    first_with_id = next((node for node in root.traverse() if node.id == form_id), None)
    is_named = bool(form_id) and first_with_id is not None and first_with_id.mem_id == form.mem_id
    stack = [(root, False, False, "ltr")]
    while stack:
        node, is_inside, is_off, direction = stack.pop()
        tag = node.tag
        if (own_direction := (node.attrs.get("dir") or "").lower()) in ("ltr", "rtl", "auto"):
            direction = own_direction
        if tag in _CONTROLS:
            attributes = node.attributes
            if "form" in attributes:
                is_ours = is_named and attributes["form"] == form_id
            elif OWNER in attributes:
                is_ours = attributes[OWNER] == number
            else:
                is_ours = is_inside
            if is_ours:
                controls.append(_Control(node, attributes, is_off=is_off, direction=direction))
        elif tag == "noscript" and is_inside:
            continue  # browsers read <noscript> as text
        elif tag == "form":
            is_inside = node.mem_id == form.mem_id
        elif tag == "shadow-root":
            is_inside = False
        is_disabled = tag == "fieldset" and "disabled" in node.attributes
        children = [child for child in node.iter() if child.is_element_node]
        # Fields in the first legend of a disabled fieldset remain enabled.
        legends = (child for child in children if is_disabled and child.tag == "legend")
        legend = next(legends, None)
        is_off_below = is_off or is_disabled or tag == "datalist"
        stack += [
            (child, is_inside, is_off if child is legend else is_off_below, direction)
            for child in reversed(children)
        ]
    return controls


def _entries(
    controls: list[_Control],
    button: _Control | None,
    *,
    field_values: Mapping[str, FieldValue],
    encoding: str,
) -> list[_Entry]:
    """Return a form's names and values; values in *field_values* replace the page's values."""
    # A checked radio button unchecks all other buttons with the same name.
    radio = {
        control.name: control
        for control in controls
        if control.kind == "radio" and "checked" in control.attributes
    }
    unused_fields = dict(field_values)
    entries: list[_Entry] = []
    for control in controls:
        name, kind = control.name, control.kind
        if control.is_disabled and control is not button:
            continue
        if name in field_values and (control is button or not control.is_button):
            if name in unused_fields:
                entries += [(name, value) for value in _texts(unused_fields.pop(name))]
        elif control is button:
            entries += _entries_of_button(control)
        elif name and not control.is_button:
            is_unchecked = kind == "checkbox" and "checked" not in control.attributes
            is_unset = kind == "radio" and radio.get(name) is not control
            if not is_unchecked and not is_unset:
                entries += _entries_of(control, encoding=encoding)
    entries += [(name, value) for name in unused_fields for value in _texts(unused_fields[name])]
    return [(_internet_lines(name), _internet_lines(value)) for name, value in entries]


def _texts(value: FieldValue) -> list[str]:
    if value is None:
        return []
    return [str(value)] if isinstance(value, str | int | float) else list(map(str, value))


def _entries_of_button(button: _Control) -> Iterator[_Entry]:
    name = button.name
    if button.kind == "image" and button.tag == "input":
        prefix = f"{name}." if name else ""
        yield f"{prefix}x", "0"
        yield f"{prefix}y", "0"
    elif name:
        yield from _direction_entry(button, value := button.attributes.get("value") or "")
        yield name, value


def _entries_of(control: _Control, *, encoding: str) -> Iterator[_Entry]:
    attributes, name, kind = control.attributes, control.name, control.kind
    if control.tag == "select":
        for option in _selected_options(control):
            attributes = option.attributes
            yield name, attributes["value"] or "" if "value" in attributes else _text_of(option)
        return
    if control.tag == "textarea":
        value = control.node.text()
        if (attributes.get("wrap") or "").lower() in ("hard", "physical", "on"):
            value = _wrapped(value, columns=_integer(attributes.get("cols")) or 20)
    elif kind == "hidden" and name.lower() == "_charset_":
        value = _title(encoding)
    elif kind == "file":
        value = ""  # only a user can choose a file, so the page's value does not count
    else:
        value = attributes.get("value") or ""
        if kind in ("checkbox", "radio"):
            value = value if "value" in attributes else "on"
        value = _sanitized_input(value, kind, attributes)
    yield name, value
    yield from _direction_entry(control, value)


def _title(encoding: str) -> str:
    """Return the value of a field `_charset_` for an encoding; UTF-16 pages send UTF-8."""
    if encoding.startswith("utf-"):
        return "UTF-8"
    is_lower = encoding.startswith(("windows-", "mac", "x-", "gb18030"))
    return _CHROMIUM_NAMES.get(encoding) or (encoding if is_lower else encoding.upper())


def _selected_options(select: _Control) -> list[LexborNode]:
    options = select.node.css("option")
    selected = [option for option in options if "selected" in option.attributes]
    if "multiple" not in select.attributes:
        is_list = _integer(select.attributes.get("size")) > 1
        if not selected and not is_list:
            selected = [option for option in options if not _is_off(option)][:1]
        selected = selected[-1:]
    return [option for option in selected if not _is_off(option)]


def _is_off(option: LexborNode) -> bool:
    group = option.parent
    is_off = group is not None and group.tag == "optgroup" and "disabled" in group.attributes
    return is_off or "disabled" in option.attributes


def _text_of(option: LexborNode) -> str:
    """Return the text of an option; runs of HTML's white space become single spaces."""
    pieces = option.traverse(include_text=True)
    text = "".join(
        node.text(deep=False) or ""
        for node in pieces
        if node.is_text_node and (node.parent is None or node.parent.tag != "script")
    )
    return " ".join(filter(None, re.split(f"[{_SPACE}]+", text)))


def _sanitized_input(value: str, kind: str, attributes: Mapping[str, str | None]) -> str:
    """Return the value of an input as HTML's "value sanitization algorithm" changes it."""
    if kind in _NOT_ONE_LINE:
        return value
    if pattern := _DATE_PATTERNS.get(kind):
        return _date_text(pattern.fullmatch(value))
    if kind == "number":
        return value if _decimal(value) is not None else ""
    if kind == "range":
        return _in_range(value, attributes)
    if kind == "color":
        return _simple_color(value.strip(_SPACE))
    value = _LINE_END.sub("", value)
    if kind == "email" and "multiple" in attributes:
        return ",".join(address.strip(_SPACE) for address in value.split(","))
    return value.strip(_SPACE) if kind in ("email", "url") else value


def _date_text(date_match: re.Match[str] | None) -> str:
    """Return a date or a time, or "" if the calendar does not have this date."""
    if date_match is None:
        return ""
    parts = date_match.groupdict()
    year = int(parts.get("year", "1"))
    calendar = 2000 + year % 400  # Python's calendar ends in 9999, and repeats every 400 years
    try:
        if "day" in parts:
            date(calendar, int(parts["month"]), int(parts["day"]))
        elif "week" in parts:
            date.fromisocalendar(calendar, int(parts["week"]), 1)
    except ValueError:
        return ""
    if not year:
        return ""
    if "day" in parts and "minute" in parts:
        second = (parts["second"] or "").removesuffix(".000").removesuffix(":00")
        second = second.rstrip("0") if "." in second else second
        return f"{date_match[0][: date_match.end('day')]}T{parts['minute']}{second}"
    return date_match[0]


def _decimal(value: str | None) -> Decimal | None:
    """Return the number in *value* if it is a valid floating-point number of HTML, else None."""
    number = Decimal(value) if value and _NUMBER.fullmatch(value) else None
    return number if number is not None and abs(number) < _OVERFLOW_NUMBER else None


def _in_range(value: str, attributes: Mapping[str, str | None]) -> str:
    """Return a slider's value within its bounds and on a step; without a value, the middle."""
    number = _decimal(value)
    low, high, step = (_decimal(attributes.get(name)) for name in ("min", "max", "step"))
    base = next((bound for bound in (low, number) if bound is not None), Decimal(0))
    low, high = Decimal(0) if low is None else low, Decimal(100) if high is None else high
    high = max(low, high)
    number = (low + high) / 2 if number is None else max(min(number, high), low)
    if (attributes.get("step") or "").lower() != "any":
        step = step if step is not None and step > 0 else Decimal(1)
        half = Decimal("0.5")
        on_step = base + ((number - base) / step + half).to_integral_value(ROUND_FLOOR) * step
        on_step -= step if on_step > high else 0
        number = on_step if on_step >= low else number
    return format(number.normalize(), "f") if number else "0"


def _simple_color(value: str) -> str:
    """Return the color `#rgb` or `#rrggbb` as `#rrggbb`; other colors of CSS become black."""
    digits = value[1:].lower() if _COLOR.fullmatch(value) else "000000"
    if len(digits) < 6:
        digits = "".join(2 * digit for digit in digits)
    return f"#{digits[:6]}"


def _wrapped(text: str, *, columns: int) -> str:
    """Return a text with the line ends that Chromium adds for `wrap=hard`.

    A line holds at most *columns* + 1 characters without the spaces at the line's end.
    """
    max_line, lines = columns + 1, list[str]()
    for paragraph in text.split("\n"):
        line = ""
        for word in _WORD.findall(paragraph):
            if line and len((line + word).rstrip()) > max_line:
                lines.append(line)
                line = ""
            full_length = max(0, len(word.rstrip()) - 1) // max_line * max_line
            lines += [word[start : start + max_line] for start in range(0, full_length, max_line)]
            line += word[full_length:]
        lines.append(line)
    return "\n".join(lines)


def _direction_entry(control: _Control, value: str) -> Iterator[_Entry]:
    """Yield the form entry of a control's `dirname`; its value is the control's text direction."""
    name = control.attributes.get("dirname")
    if not name or (control.tag == "input" and control.kind in _WITHOUT_DIRECTION):
        return
    direction = control.direction
    if control.kind == "tel" and "dir" not in control.attributes:
        direction = "ltr"  # a telephone number is not written from right to left
    elif direction == "auto":
        kinds = map(unicodedata.bidirectional, value)
        direction = next((_DIRECTIONS[kind] for kind in kinds if kind in _DIRECTIONS), "ltr")
    yield name, direction


def _integer(text: str | None) -> int:
    number = _INTEGER.match(text or "")
    return int(number[1]) if number else 0


def _internet_lines(text: str) -> str:
    return _LINE_END.sub("\r\n", text)


def _form_encoded(entries: list[_Entry], encoding: str) -> bytes:
    """Return entries as application/x-www-form-urlencoded, see the URL standard."""

    def escaped(text: str) -> str:
        return quote_plus(urls.encoded(text, encoding), "*").replace("~", "%7E")

    return "&".join(f"{escaped(name)}={escaped(value)}" for name, value in entries).encode()
