"""Read the fields of an item class: a dataclass, an attrs or pydantic class, or a TypedDict.

attrs and pydantic are recognised by the attributes of their classes, because these packages may not
be installed.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    TypeGuard,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from crawlcw.errors import SpiderError
from crawlcw.model.values import ItemFields

#: The collections that the values of a selector fill.
_COLLECTIONS = (list, set, frozenset, tuple)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of an item class."""

    name: str
    argument: str  #: the name of the constructor's argument
    value_type: Any  #: the type of the value, or of each member of a collection
    collection: type | None  #: list, set, frozenset or tuple; None: a single value
    is_nullable: bool  #: whether the value may be None
    has_default: bool
    metadata: tuple[object, ...]  #: the further arguments of `Annotated`


def is_item_class(thing: object) -> TypeGuard[type]:
    """Return whether `fields_of` can read the fields of *thing*."""
    return isinstance(thing, type) and (
        dataclasses.is_dataclass(thing)
        or hasattr(thing, "__attrs_attrs__")
        or validates_itself(thing)
        or _is_typed_dict(thing)
    )


def validates_itself(item_class: type) -> bool:
    """Return whether *item_class* is a pydantic model, which converts its own values."""
    return hasattr(item_class, "model_fields") and hasattr(item_class, "model_validate")


def maker_of(item_class: type) -> Callable[[dict[str, Any]], Any]:
    """Return the function that makes an item of *item_class* from its values by argument."""
    if _is_typed_dict(item_class):
        name = item_class.__name__
        return lambda arguments: ItemFields(arguments, item_class=name)
    if validates_itself(item_class):
        validate: Callable[[dict[str, Any]], Any] = item_class.model_validate  # type: ignore[attr-defined]  # of pydantic
        return validate
    return lambda arguments: item_class(**arguments)


def _is_typed_dict(thing: type) -> bool:
    # `typing.is_typeddict` does not know the TypedDict of typing_extensions.
    return issubclass(thing, dict) and hasattr(thing, "__required_keys__")


def fields_of(item_class: type) -> Iterator[Field]:
    """Yield the fields of *item_class* that its constructor takes; raises `SpiderError`."""
    if validates_itself(item_class):
        yield from _of_model(item_class)
        return
    try:
        hints = get_type_hints(item_class, include_extras=True)
    except NameError as error:
        raise SpiderError(
            f"{item_class.__name__}: {error}; define the types of its fields at module level"
        ) from None
    if _is_typed_dict(item_class):
        yield from _of_typed_dict(item_class, hints)
    elif dataclasses.is_dataclass(item_class):
        for field in dataclasses.fields(item_class):
            if field.init:
                has_default = not (field.default is field.default_factory is dataclasses.MISSING)
                yield _field(field.name, field.name, hints[field.name], has_default=has_default)
    else:
        nothing = sys.modules["attr"].NOTHING
        for attribute in item_class.__attrs_attrs__:  # type: ignore[attr-defined]  # of attrs
            if attribute.init:
                has_default = attribute.default is not nothing
                hint = hints.get(attribute.name, attribute.type)
                yield _field(attribute.name, attribute.alias, hint, has_default=has_default)


def _of_model(model: Any) -> Iterator[Field]:
    for name, info in model.model_fields.items():
        aliases = getattr(info.validation_alias, "choices", (info.validation_alias,))
        argument = next((alias for alias in aliases if isinstance(alias, str)), name)
        has_default = not info.is_required()
        # pydantic splits `Annotated` into its type and its metadata.
        yield _field(name, argument, info.annotation, *info.metadata, has_default=has_default)


def _of_typed_dict(item_class: Any, hints: Mapping[str, Any]) -> Iterator[Field]:
    for name, hint in hints.items():
        is_required = name in item_class.__required_keys__
        value_hint = hint
        # A TypedDict of a module with `from __future__ import annotations` does not know its
        # required keys.
        while get_origin(value_hint) in (NotRequired, Required):
            is_required = get_origin(value_hint) is Required
            (value_hint,) = get_args(value_hint)
        yield _field(name, name, value_hint, has_default=not is_required)


def _field(name: str, argument: str, hint: Any, *metadata: object, has_default: bool) -> Field:
    if get_origin(hint) is Annotated:
        hint, *metadata = get_args(hint)  # type: ignore[assignment]  # a list
    hint, is_nullable = _without_none(hint)
    collection = next((kind for kind in _COLLECTIONS if kind in (hint, get_origin(hint))), None)
    members = [member for member in get_args(hint) if member is not Ellipsis]
    # A tuple of a fixed length, such as tuple[str, int], is no collection.
    if collection is tuple and members == [*get_args(hint)] and members:
        collection = None
    if collection is not None:
        (hint,) = members or (str,)
    return Field(
        name=name,
        argument=argument,
        value_type=hint,
        collection=collection,
        is_nullable=is_nullable,
        has_default=has_default,
        metadata=tuple(metadata),
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, UnionType):
        return hint, False
    members = [member for member in get_args(hint) if member is not NoneType]
    is_nullable = len(members) < len(get_args(hint))
    return (members[0] if len(members) == 1 else Union[tuple(members)]), is_nullable  # noqa: UP007  # of a variable
