"""`--token-file`: the token that clients of a server must send."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from crawlcw.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

#: Syntax of a bearer token (RFC 6750, b64token).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def token_option(command: Callable[P, R]) -> Callable[P, R]:
    """Add `--token-file` to a command."""
    return click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File with the token that clients must send. Default: CRAWLCW_TOKEN, or no token.",
    )(command)


def access_token(path: Path | None) -> str | None:
    """Return the token from a file, or else from the environment; raises `UsageError`."""
    found = os.environ.get("CRAWLCW_TOKEN") if path is None else _content(path)
    if found is not None and not _TOKEN.fullmatch(found):
        place = "CRAWLCW_TOKEN" if path is None else str(path)
        raise UsageError(
            f"{place} holds no token: write one or more letters, digits or any of ._~+/- into it"
        )
    return found


def _content(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the token cannot be read from {path}: {error}") from None
