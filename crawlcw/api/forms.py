"""A form of a page, and the request that a browser would send when it is submitted.

Fields, hidden ones among them, have the values that the page gives them. How a form
becomes a request is form2request's to know, which is an extra.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from crawlcw.api.request import Callback, Request
from crawlcw.errors import FetchError, SpiderError
from crawlcw.model import urls

if TYPE_CHECKING:
    from parsel import Selector

#: What a field may be given: a text, several where the field may have several, or none at all.
FieldValue = str | int | float | Iterable[str] | None


class Form:
    """A form that can be submitted, with the values that its page gives it."""

    def __init__(
        self,
        node: "Selector",
        *,
        base_url: str,
        callback: Callback | None = None,
        click: str | Literal[False] | None = None,
        **options: Any,
    ) -> None:
        """*options* are those of the `Request`; see `Response.form` for *click*."""
        self._node = node
        self._base_url = base_url
        self._callback = callback
        self._click = click
        self._options = options

    @property
    def fields(self) -> dict[str, Any]:
        """The fields with the values that the page gives them, by name."""
        return dict(self._node.root.fields)

    def submit(
        self, fields: Mapping[str, FieldValue] | None = None, /, **named: FieldValue
    ) -> Request:
        """Return the request of the form, filled in with *fields* and those *named*.

        None leaves a field out. A button that is clicked sends its own name and value.
        A form that leads nowhere becomes a request that the crawl drops and counts.
        Raises `ValueError` for a form that sends files, and for a button that is not there.
        """
        form2request = _form2request()
        root = self._node.root
        # What the page's links are relative to: a <base> counts for forms as well.
        root.getroottree().docinfo.URL = self._base_url
        given = {**(fields or {}), **named}
        data = {
            name: str(value) if isinstance(value, int | float) else value
            for name, value in given.items()
        }
        try:
            made = form2request(self._node, data, click=self._button())
        except NotImplementedError:
            message = "the form sends files, or is a dialog: make its request by hand"
            raise ValueError(message) from None
        options = {"headers": made.headers, **self._options}
        if made.method == "POST":
            options |= {"method": "POST", "body": made.body}
        action = root.get("action") or ""
        try:
            url = urls.resolve(self._base_url, made.url)
        except FetchError as refusal:
            return Request.refused(action, refusal, self._callback, **options)
        return Request(url, self._callback, **options)

    def _button(self) -> Any:
        if self._click is None or self._click is False:
            return self._click
        found = self._node.css(self._click)
        if not found:
            raise ValueError(f"the form has no button {self._click!r}")
        return found[0].root


def find(selector: "Selector", css: str) -> "Selector":
    """Return the first form that matches a CSS selector; raises `ValueError` where none does."""
    found = selector.css(css)
    if not found:
        raise ValueError(f"the page has no form {css!r}")
    if found[0].root.tag != "form":
        raise ValueError(f"{css!r} is a <{found[0].root.tag}>, and no form")
    return found[0]


def _form2request() -> Any:
    try:
        from form2request import form2request
    except ImportError:
        raise SpiderError(
            "forms need form2request: install it with `pip install 'crawlcw[forms]'`"
        ) from None
    return form2request
