"""Lists and dictionaries that cannot be changed, equal to those that they were made of.

Whoever changes one is told so, where a change of a copy would be lost in silence.
"""

from typing import Any, Never


def frozen(value: Any) -> Any:
    """Return a clean value whose lists and dictionaries, however deep, cannot be changed."""
    if isinstance(value, _Frozen):
        return value
    if isinstance(value, dict):
        return FrozenDict({key: frozen(each) for key, each in value.items()})
    if isinstance(value, list):
        return FrozenList(frozen(each) for each in value)
    return value


def thawed(value: Any) -> Any:
    """Return a copy that may be changed."""
    if isinstance(value, dict):
        return {key: thawed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [thawed(each) for each in value]
    return value


def _refuse(self: object, *_: object, **__: object) -> Never:
    kind = "list" if isinstance(self, list) else "dict"
    raise TypeError(f"this {kind} is read-only: change a copy, {kind}(...), and assign that")


class _Frozen:
    """What both refuse, and how both are copied: as what may be changed."""

    __setitem__ = __delitem__ = clear = pop = _refuse

    def __copy__(self) -> Any:
        return self.copy()  # type: ignore[attr-defined]  # both have it

    def __deepcopy__(self, _: object) -> Any:
        return thawed(self)

    def __reduce_ex__(self, _: object) -> Any:
        return type(self), (self.copy(),)  # type: ignore[attr-defined]  # both have it


class FrozenList(_Frozen, list[Any]):
    """A list that cannot be changed; `+=` makes another one."""

    append = extend = insert = remove = reverse = sort = __imul__ = _refuse

    def __iadd__(self, others: Any) -> Any:  # type: ignore[misc]  # it takes what a list's does
        return [*self, *others]


class FrozenDict(_Frozen, dict[str, Any]):
    """A dictionary that cannot be changed; `|=` makes another one."""

    popitem = setdefault = update = _refuse

    def __ior__(self, others: Any) -> Any:  # type: ignore[misc]  # it takes what a dict's does
        return dict(self) | dict(others)
