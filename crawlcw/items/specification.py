"""Items by a specification in JSON, for users who write no class."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Self, TypedDict

from crawlcw.errors import SpiderError
from crawlcw.items.plans import checked, extract_all, plan_of
from crawlcw.items.scopes import Page
from crawlcw.items.selectors import Css, JsonLd, Re, Selector, XPath

_TYPES: dict[str, type] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "decimal": Decimal,
    "date": date,
    "datetime": datetime,
}
#: The keys of the selectors, each with the key that only it can have beside it.
_SELECTORS = {"css": "attr", "xpath": "", "jsonld": "kind"}
#: The keys of a field, with the type of their values.
_FIELD_KEYS: dict[str, type] = {
    **dict.fromkeys(("css", "attr", "xpath", "jsonld", "kind", "re", "type"), str),
    **dict.fromkeys(("list", "optional"), bool),
    "fields": dict,
}
#: Maximum depth of items within items.
_MAX_DEPTH = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    r"""The items that a specification in JSON selects, as dicts.

        {
            "name": "Book",
            "blocks": {"css": "article"},
            "fields": {
                "title": "h1",
                "price": {"css": ".price", "re": "[\\d.]+", "type": "decimal"},
                "tags": {"css": "a.tag", "list": true},
                "url": {"css": "a", "attr": "href"},
                "author": {"jsonld": "author.name", "optional": true},
                "reviews": {"css": ".review", "list": true, "fields": {"stars": {...}}}
            }
        }

    A field is a CSS selector, or an object with one of the keys `css` (with `attr`), `xpath` and
    `jsonld` (with `kind`). Its other keys are `re`, `type` (`str`, `int`, `float`, `bool`,
    `decimal`, `date` or `datetime`), `list`, `optional` and `fields`. Without `blocks` the whole
    page is one item.
    """

    item_class: type  #: a TypedDict with the fields
    blocks: Selector | None  #: None: the page is one item

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the extraction of a specification; raises `SpiderError` for an invalid one."""
        if not isinstance(document, Mapping):
            raise SpiderError(f"the specification must be an object, not {document!r}")
        _check_keys(document, {"name": str, "blocks": dict, "fields": dict}, "the specification")
        name = document.get("name", "Item")
        blocks = document.get("blocks")
        selector = None
        if blocks is not None:
            _check_keys(blocks, dict.fromkeys((*_SELECTORS, "kind"), str), "blocks")
            selector = _selector(blocks, "blocks")
            checked(selector, "blocks")
        item_class = _item_class(name, document, depth=0)
        plan_of(item_class)  # checks the selectors
        return cls(item_class=item_class, blocks=selector)

    def items(self, response: Page) -> list[dict[str, Any]]:
        """Return the items on the page *response*.

        Raises `InvalidItemError` in the same way as `Response.extract_all`.
        """
        return extract_all(response, self.item_class, self.blocks)


def _item_class(name: str, document: Mapping[str, Any], *, depth: int) -> type:
    fields = document.get("fields")
    if not isinstance(fields, Mapping) or not fields:
        raise SpiderError(f"{name}: 'fields' must be an object with a selector for each field")
    if depth > _MAX_DEPTH:
        raise SpiderError(f"{name}: items are nested more than {_MAX_DEPTH} deep")
    hints = {
        field: _hint(f"{name}.{field}", {"css": spec} if isinstance(spec, str) else spec, depth)
        for field, spec in fields.items()
    }
    item_class: type = TypedDict(name, hints)  # type: ignore[misc]  # its fields are data
    return item_class


def _hint(path: str, spec: object, depth: int) -> Any:
    if not isinstance(spec, Mapping):
        raise SpiderError(f"{path}: write a CSS selector or an object, not {spec!r}")
    _check_keys(spec, _FIELD_KEYS, path)
    hint: Any
    if "fields" in spec:
        if "type" in spec:
            raise SpiderError(f"{path}: write 'fields' or 'type', not both")
        hint = _item_class(path, spec, depth=depth + 1)
    elif (hint := _TYPES.get(spec.get("type", "str"))) is None:
        raise SpiderError(f"{path}: unknown type {spec['type']!r}: use one of {', '.join(_TYPES)}")
    hint = list[hint] if spec.get("list") else hint
    hint = hint | None if spec.get("optional") else hint
    patterns = [Re(spec["re"])] if "re" in spec else []
    return Annotated[hint, _selector(spec, path), *patterns]


def _selector(spec: Mapping[str, Any], path: str) -> Selector:
    keys = _SELECTORS.keys() & spec.keys()
    if len(keys) != 1:
        raise SpiderError(f"{path}: write one of 'css', 'xpath' and 'jsonld'")
    for selector, option in _SELECTORS.items():
        if option in spec and selector not in keys:
            raise SpiderError(f"{path}: {option!r} needs {selector!r}")
    match keys.pop():
        case "css":
            return Css(spec["css"], attr=spec.get("attr"))
        case "xpath":
            return XPath(spec["xpath"])
        case _:
            return JsonLd(spec["jsonld"], spec.get("kind"))


def _check_keys(spec: Mapping[str, Any], types: Mapping[str, type], path: str) -> None:
    for key, value in spec.items():
        if key not in types:
            raise SpiderError(f"{path}: unknown key {key!r}: use {', '.join(sorted(types))}")
        if not isinstance(value, types[key]):
            raise SpiderError(f"{path}: {key!r} must be a {types[key].__name__}, not {value!r}")
