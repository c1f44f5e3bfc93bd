"""Remote stores: whatever fsspec opens, `s3://`, `gs://` and others."""

from typing import Any

from crawlcw.errors import UsageError


def is_remote(place: str) -> bool:
    """Return whether *place* is that of a remote store, not of this machine's disk."""
    return "://" in place


def filesystem(place: str) -> tuple[Any, str]:
    """Return the store of *place* and its path there; raises `UsageError` where none can be had."""
    scheme = place.partition("://")[0]
    try:
        import fsspec

        store, path = fsspec.core.url_to_fs(place)
    except ImportError as error:
        raise UsageError(
            f"{scheme}:// needs fsspec and what it opens {scheme} with: "
            f"`pip install 'crawlcw[remote]'` ({error})"
        ) from None
    except ValueError as error:
        raise UsageError(f"{scheme}:// cannot be written to: {error}") from None
    return store, path
