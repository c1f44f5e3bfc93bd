"""Decorator for dataclasses that each page of a crawl makes.

A frozen dataclass is slow, because it sets each field by a call. So only the type checker treats
these dataclasses as frozen. Their hash uses all fields, like that of a frozen dataclass. Tasks and
leases, which user code gets, are frozen at run time.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as page_value
else:
    from dataclasses import dataclass
    from functools import partial

    def page_value(*, frozen, **options):
        """Return `dataclass` with *options*; do not assign to a field, see the module."""
        return partial(dataclass, unsafe_hash=frozen, **options)


__all__ = ["page_value"]
