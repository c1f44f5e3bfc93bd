"""Decorator for the dataclasses of which each page of a crawl makes some.

A frozen dataclass sets each field by a call. So these are frozen to the type checker alone,
and are hashed by their fields as frozen ones are. Tasks and leases, which users' code gets, are
frozen at run time.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as page_value
else:
    from dataclasses import dataclass
    from functools import partial

    def page_value(*, frozen, **options):
        """Return `dataclass` with *options*; no value is to be assigned to, see the module."""
        return partial(dataclass, unsafe_hash=frozen, **options)


__all__ = ["page_value"]
