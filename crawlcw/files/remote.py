"""Remote stores of fsspec: `s3://`, `gs://` and others."""

from typing import Any

from crawlcw.errors import UsageError


def is_remote(place: str) -> bool:
    """Return whether *place* is a URL of a remote store, not a local path."""
    return "://" in place


def filesystem(place: str) -> tuple[Any, str]:
    """Return the store of *place* and the path in it; raises `UsageError` without the library."""
    scheme = place.partition("://")[0]
    try:
        import fsspec

        store, path = fsspec.core.url_to_fs(place)
    except ImportError as error:
        raise UsageError(
            f"{scheme}:// needs fsspec and its library for {scheme}: "
            f"`pip install 'crawlcw[remote]'` ({error})"
        ) from None
    except ValueError as error:
        raise UsageError(f"cannot write to {scheme}://: {error}") from None
    return store, path
