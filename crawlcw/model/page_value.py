"""Define `page_value`, a decorator for dataclasses with one or more objects for each page.

A frozen dataclass is slow to create, because its `__init__` calls a function for each field. So a
`page_value` class is frozen for the type checker only. The hash of an object uses all fields, as in
a frozen class. Tasks and leases are truly frozen, because user code receives them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as page_value
else:
    from dataclasses import dataclass
    from functools import partial

    def page_value(*, frozen, **options):
        """Return the `dataclass` decorator with *options*; it freezes no class at run time."""
        return partial(dataclass, unsafe_hash=frozen, **options)


__all__ = ["page_value"]
