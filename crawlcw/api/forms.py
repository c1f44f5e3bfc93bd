"""A form of a page, and the request that a browser would send when it is submitted.

Fields, hidden ones among them, have the values that the page gives them. The HTML
standard says which are sent ("constructing the entry list") and how ("form
submission algorithm"). Files and dialogs are left to the spider.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote_plus

from crawlcw.api import charset
from crawlcw.api.request import Callback, Request
from crawlcw.errors import FetchError
from crawlcw.model import urls

if TYPE_CHECKING:
    from parsel import Selector

#: Value for a field: a text, several where the field may have several, or none at all.
FieldValue = str | int | float | Iterable[str] | None
#: A name and its value, as they are sent.
_Entry = tuple[str, str]

_CONTROLS = ("button", "input", "select", "textarea")
_NO_SUBMIT_BUTTONS = frozenset({"button", "reset"})
_SUBMIT_INPUTS = frozenset({"submit", "image"})
#: Kinds of input whose value has any number of lines, or is none of a line of text.
_NOT_ONE_LINE = frozenset({"hidden", "checkbox", "radio", "submit", "image"})
_LINE_END = re.compile(r"\r\n?|\n")
_FIRST_LINE_END = re.compile(r"\A(?:\r\n|\n)")
#: Encodings of a form that only the spider itself can make.
_UNSENT = frozenset({"multipart/form-data", "text/plain"})
_ENCODED = "application/x-www-form-urlencoded"


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Form:
    """A form that can be submitted, with the values that its page gives it."""

    node: "Selector"
    page_url: str
    base_url: str  #: that of the page's links
    encoding: str  #: that of the page, by the standard's name
    callback: Callback | None
    click: str | Literal[False] | None  #: see `Response.form`
    options: dict[str, Any]  #: those of the `Request`

    @property
    def fields(self) -> dict[str, Any]:
        """The fields with the values that the page gives them, by name."""
        root = self.node.root
        return dict(root.fields) | {
            each.get("name"): _text_of(each) for each in root.iter("textarea") if each.get("name")
        }

    def submit(
        self, fields: Mapping[str, FieldValue] | None = None, /, **named: FieldValue
    ) -> Request:
        """Return the request of the form, filled in with *fields* and those *named*.

        None leaves a field out. A button that is clicked sends its own name and value,
        unless that name is given another. Text is sent in the encoding of the page.
        A form that leads nowhere becomes a request that the crawl drops and counts.
        Raises `ValueError` for a form that sends files, and for a button that is not there.
        """
        root = self.node.root
        controls = list(_controls_of(root))
        button = self._button(controls)

        def said(name: str) -> str:
            of_button = "" if button is None else button.get(f"form{name}", "")
            return str(of_button or root.get(name, ""))

        method, kind = said("method").lower(), said("enctype").lower()
        if method == "dialog" or (method == "post" and kind in _UNSENT):
            raise ValueError(
                "the form sends files or plain text, or is a dialog: make its request by hand"
            )
        labels = root.get("accept-charset", "").replace(",", " ").split()
        encoding = next(filter(None, map(charset.named, labels)), self.encoding)
        sent = _sent(controls, button, given={**(fields or {}), **named})
        action = said("action").strip()
        options = self.options
        if method == "post":
            options = {"headers": [("Content-Type", _ENCODED)], **options}
            options |= {"method": "POST", "body": _encoded(sent, encoding)}
        try:
            # Without an action it leads to its page, whatever a <base> says.
            url = urls.resolve(self.base_url if action else self.page_url, action)
        except FetchError as refusal:
            return Request.refused(action, refusal, self.callback, **options)
        if method != "post":
            # An empty query is one (HTML, "mutate action URL").
            url = f"{url.partition('?')[0]}?{_encoded(sent, encoding).decode()}"
        return Request(url, self.callback, **options)

    def _button(self, controls: list[Any]) -> Any:
        """Return the button that is clicked, or None."""
        if self.click is False:
            return None
        if self.click is None:
            buttons = (each for each in controls if _is_button(each))
            return next((each for each in buttons if _kind(each) not in _NO_SUBMIT_BUTTONS), None)
        if found := self.node.css(self.click):
            return found[0].root
        # A button elsewhere in the page may be of the form.
        chosen = set(self.node.root.getroottree().getroot().cssselect(self.click))
        for each in controls:
            if each in chosen:
                return each
        raise ValueError(f"the form has no button {self.click!r}")


def _controls_of(form: Any) -> Iterator[Any]:
    """Yield the controls of a form that are not disabled, in the order of the page."""
    inside = set(form.iter(*_CONTROLS))
    waiting = [(form.getroottree().getroot(), False)]
    while waiting:
        node, off = waiting.pop()
        if node.tag in _CONTROLS and not off and "disabled" not in node.attrib:
            owner = node.get("form")
            if node in inside if owner is None else owner == form.get("id"):
                yield node
        is_disabled = node.tag == "fieldset" and "disabled" in node.attrib
        # Fields in the first legend of a fieldset can be used all the same.
        legend = next(node.iterchildren("legend"), None) if is_disabled else None
        below = off or is_disabled or node.tag == "datalist"
        waiting += [
            (each, off if each is legend else below) for each in node.iterchildren(reversed=True)
        ]


def _sent(controls: list[Any], button: Any, *, given: Mapping[str, FieldValue]) -> list[_Entry]:
    """Return the entries of a form: the page's, then those *given*, then the button's."""
    # A radio button that is checked unchecks the others of its name.
    radio = {
        each.get("name"): each
        for each in controls
        if _kind(each) == "radio" and "checked" in each.attrib
    }
    entries: list[_Entry] = []
    for each in controls:
        name, kind = each.get("name"), _kind(each)
        unchecked = kind == "checkbox" and "checked" not in each.attrib
        unset = kind == "radio" and radio.get(name) is not each
        if name and name not in given and not (_is_button(each) or unchecked or unset):
            entries += [(name, value) for value in _values_of(each)]
    for name, value in given.items():
        if isinstance(value, str | int | float):
            entries.append((name, str(value)))
        elif value is not None:
            entries += [(name, str(each)) for each in value]
    if button is not None:
        entries += [entry for entry in _clicked(button) if entry[0] not in given]
    return [(_internet_lines(name), _internet_lines(value)) for name, value in entries]


def _values_of(control: Any) -> Iterator[str]:
    if control.tag == "select":
        for option in _selected(control):
            value = option.get("value")
            yield " ".join(option.text_content().split()) if value is None else value
    elif control.tag == "textarea":
        yield _text_of(control)
    else:
        kind = _kind(control)
        value = control.get("value", "on" if kind in ("checkbox", "radio") else "")
        if kind == "file":
            value = ""  # whatever the page says, it is the user who chooses
        yield value if kind in _NOT_ONE_LINE else _LINE_END.sub("", value)


def _clicked(button: Any) -> Iterator[_Entry]:
    name = button.get("name")
    if _kind(button) == "image" and button.tag == "input":
        before = f"{name}." if name else ""
        yield f"{before}x", "0"
        yield f"{before}y", "0"
    elif name:
        yield name, button.get("value", "")


def _selected(select: Any) -> Iterator[Any]:
    options = list(select.iter("option"))
    selected = [each for each in options if "selected" in each.attrib]
    if "multiple" not in select.attrib:
        is_list = select.get("size", "1").strip() not in ("", "0", "1")
        if not selected and not is_list:
            selected = [each for each in options if not _is_off(each)][:1]
        selected = selected[-1:]
    return (each for each in selected if not _is_off(each))


def _is_off(option: Any) -> bool:
    group = option.getparent()
    return "disabled" in option.attrib or (group.tag == "optgroup" and "disabled" in group.attrib)


def _is_button(control: Any) -> bool:
    buttons = _SUBMIT_INPUTS | _NO_SUBMIT_BUTTONS
    return control.tag == "button" or (control.tag == "input" and _kind(control) in buttons)


def _kind(control: Any) -> str:
    return str(control.get("type", "")).strip().lower()


def _text_of(textarea: Any) -> str:
    """Return the value of a textarea, of which HTML leaves out a first line end."""
    return _FIRST_LINE_END.sub("", textarea.text_content())


def _internet_lines(text: str) -> str:
    return _LINE_END.sub("\r\n", text)


def _encoded(entries: list[_Entry], encoding: str) -> bytes:
    """Return entries as application/x-www-form-urlencoded, of the URL standard."""

    def escaped(text: str) -> str:
        return quote_plus(urls.encoded(text, encoding), "*").replace("~", "%7E")

    return "&".join(f"{escaped(name)}={escaped(value)}" for name, value in entries).encode()
