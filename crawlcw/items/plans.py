"""Make items of a class from a page, by a plan that is compiled once for each class.

A plan has the selectors of each field, and the conversion of its texts. It runs on a `Scope`: on a
whole page, or on one block of the page.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_origin

from crawlcw.errors import InvalidItemError, SpiderError
from crawlcw.items.conversions import CONVERSIONS, conversion_to
from crawlcw.items.fields import Field, fields_of, is_item_class, maker_of, validates_itself
from crawlcw.items.scopes import Page, PageData, Reader, Scope, reader_of
from crawlcw.items.selectors import Css, JsonLd, Re, Selector, XPath
from crawlcw.model.sanitize import printable
from crawlcw.model.values import InvalidItem

#: Plans in the cache. It has a limit, because a program may make item classes from JSON for ever.
_MAX_PLANS = 256
#: Maximum length of a text of a page in an error.
_MAX_QUOTE = 60


def extract(page: Page, item_class: type) -> Any:
    """Return the item on *page*; raises `SpiderError` for a wrong class.

    If the item is invalid, `extract` raises `InvalidItemError`. It returns an `InvalidItem` instead
    if `page.invalid_item_reasons` is a list.
    """
    plan = plan_of(item_class)
    try:
        return plan.item(Scope(PageData(page)))
    except InvalidItemError as error:
        if page.invalid_item_reasons is None:
            raise
        return InvalidItem(error)


def extract_all(page: Page, item_class: type, blocks: str | Selector | None) -> list[Any]:
    """Return an item for each of the *blocks* of *page*; None means the whole page.

    `extract_all` raises the same errors as `extract`. It leaves an invalid item out if
    `page.invalid_item_reasons` is a list, and adds the reason to the list.
    """
    plan = plan_of(item_class)
    scopes = iter((Scope(PageData(page)),))
    if blocks is not None:
        reader = _block_reader(Css(blocks) if isinstance(blocks, str) else blocks)
        scopes = reader.blocks(next(scopes))
    items = []
    for scope in scopes:
        try:
            items.append(plan.item(scope))
        except InvalidItemError as error:
            if page.invalid_item_reasons is None:
                raise
            page.invalid_item_reasons.append(error.reason)
    return items


#: A function that returns a field's value in a scope, or None if there is no value.
Read = Callable[[Scope], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One selector of a field, with the patterns that cut values out of its texts."""

    text: str  #: the selector, for messages
    reader: Reader
    patterns: tuple[re.Pattern[str], ...] = ()

    def first(self) -> Callable[[Scope], str | None]:
        """Return a function for the first value in a scope; None or "": no value."""
        first_text, patterns = self.reader.first, self.patterns

        def first_match(scope: Scope) -> str | None:
            text = first_text(scope)
            for pattern in patterns:
                if not text or (match := pattern.search(text)) is None:
                    return None
                text = _value_of(match)
            return text

        return first_match if patterns else first_text

    def all(self, scope: Scope) -> list[str]:
        """Return all values in *scope*."""
        texts = self.reader.all(scope)
        for pattern in self.patterns:
            texts = [_value_of(match) for text in texts for match in pattern.finditer(text)]
        return [text for text in texts if text]


def _value_of(match: re.Match[str]) -> str:
    """Return the first group, or the whole match if the pattern has no group."""
    return (match[1 if match.re.groups else 0] or "").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPlan:
    """How a field gets its value."""

    field: Field
    label: str  #: the field with its class, for messages
    sources: tuple[Source, ...]
    reads: tuple[tuple[Read, str], ...]  #: a function for each source, and the source's text

    def default(self, scope: Scope) -> Any:
        """Return the value of a field that has neither a value nor a default of its class."""
        if self.field.is_nullable:
            return None
        if self.field.collection is not None:
            return self.field.collection()
        raise InvalidItemError(
            f"{self.label} is missing: no value from {self.selectors}", page=scope.data.page.url
        )

    @property
    def selectors(self) -> str:
        """The selectors of the field, for messages."""
        return " or ".join(source.text for source in self.sources)


@dataclass(slots=True, kw_only=True)
class Plan:
    """How the items of one class are made."""

    name: str  #: of the class
    fields: tuple[FieldPlan, ...]
    make: Callable[[dict[str, Any]], Any]

    def item(self, scope: Scope) -> Any:
        """Return the item in *scope*; raises `InvalidItemError`."""
        arguments: dict[str, Any] = {}
        counts = scope.data.page.field_sources
        for plan in self.fields:
            for read, source_text in plan.reads:  # noqa: B007  # counted below
                if (value := read(scope)) is not None:
                    arguments[plan.field.argument] = value
                    break
            else:
                source_text = ""
                if not plan.field.has_default:
                    arguments[plan.field.argument] = plan.default(scope)
            if counts is not None and plan.reads:
                counts[plan.label, source_text] += 1
        try:
            return self.make(arguments)
        except ValueError as error:  # of pydantic, or of a validator in the class
            raise self._refused(error, scope) from None

    def _refused(self, error: ValueError, scope: Scope) -> InvalidItemError:
        page = scope.data.page.url
        if type(error).__module__.partition(".")[0] != "pydantic_core":
            return InvalidItemError(f"{self.name} is invalid", detail=printable(error), page=page)
        problem = error.errors(include_url=False)[0]  # type: ignore[attr-defined]  # of pydantic
        name = next(iter(problem["loc"]), None)
        detail = problem["msg"]
        for field in self.fields:
            if field.field.argument == name:
                reason = f"{field.label} is invalid ({problem['type']}): {field.selectors}"
                detail += f", not {printable(repr(problem['input']), limit=_MAX_QUOTE)}"
                break
        else:
            reason = f"{self.name} is invalid ({problem['type']})"
        return InvalidItemError(reason, detail=printable(detail, limit=200), page=page)


@lru_cache(maxsize=_MAX_PLANS)
def plan_of(item_class: type) -> Plan:
    """Return the plan of an item class; raises `SpiderError` if the class can have none."""
    return _compiled(item_class, ())


@lru_cache(maxsize=_MAX_PLANS)
def _block_reader(selector: Selector) -> Reader:
    return reader_of(selector)


def _compiled(item_class: object, outer_classes: tuple[object, ...]) -> Plan:
    if not is_item_class(item_class):
        raise SpiderError(
            f"{item_class!r} is not an item class: write a dataclass, an attrs or pydantic class, "
            "or a TypedDict"
        )
    if item_class in outer_classes:
        # Blocks within blocks of the same class would be read again and again: a page with 30
        # blocks, one in another, would have a thousand million items.
        raise SpiderError(
            f"{item_class.__name__} contains itself, which extract() does not support"
        )
    fields = tuple(
        _field_plan(field, item_class, (*outer_classes, item_class))
        for field in fields_of(item_class)
    )
    if not any(field.sources for field in fields):
        raise SpiderError(
            f"{item_class.__name__} has no selector: write title: Annotated[str, Css('h1')]"
        )
    return Plan(name=item_class.__name__, fields=fields, make=maker_of(item_class))


def _field_plan(field: Field, item_class: type, classes: tuple[object, ...]) -> FieldPlan:
    label = f"{item_class.__name__}.{field.name}"
    sources = _sources(field, label)
    if not sources and not (field.has_default or field.is_nullable):
        raise SpiderError(f"{label} has no selector: write Annotated[...] or give it a default")
    reads: list[Read] = []
    if sources and is_item_class(field.value_type):
        if any(source.patterns for source in sources):
            raise SpiderError(f"{label} has an item class, so it can have no Re")
        nested = _compiled(field.value_type, classes)
        if field.collection in (set, frozenset):
            raise SpiderError(f"{label}: items cannot be in a set: use a list or a tuple")
        reads = [_nested_read(source, nested, field.collection) for source in sources]
    elif sources:
        convert = _conversion(field, item_class, label)
        reads = [_read(source, field, convert, label) for source in sources]
    return FieldPlan(
        field=field,
        label=label,
        sources=sources,
        reads=tuple((read, source.text) for read, source in zip(reads, sources, strict=True)),
    )


def _conversion(field: Field, item_class: type, label: str) -> Callable[[str], Any] | None:
    if get_origin(field.value_type) in (dict, list, set, frozenset, tuple):
        raise SpiderError(
            f"{label}: a selector fills a list, a set or a tuple[X, ...] of single values"
        )
    if validates_itself(item_class):
        return None
    convert = conversion_to(field.value_type)
    if convert is None:
        names = ", ".join(kind.__name__ for kind in CONVERSIONS)
        raise SpiderError(
            f"{label}: use {names}, an Enum, a list, set or tuple[X, ...] of them, or an item class"
        )
    return None if convert is str else convert


def _nested_read(source: Source, nested: Plan, collection: type | None) -> Read:
    blocks, item = source.reader.blocks, nested.item

    def read_all(scope: Scope) -> Any:
        assert collection is not None
        return collection(item(block) for block in blocks(scope)) or None

    def read_first(scope: Scope) -> Any:
        block = next(blocks(scope), None)
        return None if block is None else item(block)

    return read_first if collection is None else read_all


def _read(source: Source, field: Field, convert: Callable[[str], Any] | None, label: str) -> Read:
    first, every = source.first(), source.all
    collection = field.collection or list

    def converted(text: str, scope: Scope) -> Any:
        assert convert is not None
        try:
            return convert(text)
        except (ValueError, ArithmeticError):
            raise InvalidItemError(
                f"{label} is not {_with_article(field.value_type)}: {source.text}",
                detail=f"gives {printable(repr(text), limit=_MAX_QUOTE)}",
                page=scope.data.page.url,
            ) from None

    def read_all(scope: Scope) -> Any:
        return collection(converted(text, scope) for text in every(scope)) or None

    def read_texts(scope: Scope) -> Any:
        return collection(every(scope)) or None

    def read_text(scope: Scope) -> Any:
        return first(scope) or None

    def read_first(scope: Scope) -> Any:
        text = first(scope)
        return converted(text, scope) if text else None

    if convert is None:
        return read_text if field.collection is None else read_texts
    return read_first if field.collection is None else read_all


def _sources(field: Field, label: str) -> tuple[Source, ...]:
    sources: list[Source] = []
    for mark in field.metadata:
        if isinstance(mark, Css | JsonLd | XPath):
            sources.append(Source(text=repr(mark), reader=checked(mark, label)))
        elif isinstance(mark, Re):
            if not sources:
                raise SpiderError(f"{label}: write {mark!r} behind its selector")
            selected = sources.pop()
            patterns = (*selected.patterns, _pattern(mark, label))
            text = f"{selected.text} with {mark!r}"
            sources.append(Source(text=text, reader=selected.reader, patterns=patterns))
    return tuple(sources)


def checked(selector: Selector, label: str) -> Reader:
    """Return the reader of *selector*; the error for an invalid selector begins with *label*."""
    try:
        return reader_of(selector)
    except SpiderError as error:
        raise SpiderError(f"{label}: {error}") from None


def _pattern(mark: Re, label: str) -> re.Pattern[str]:
    try:
        return re.compile(mark.pattern)
    except re.error as error:
        raise SpiderError(f"{label}: {mark!r} is not a regular expression: {error}") from None


def _with_article(value_type: Any) -> str:
    name = value_type.__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
