"""Command line and environment for workers, from those of this process.

Settings that hold secrets are passed by the environment: every user of the machine can
read command lines.
"""

import os
import sys
from itertools import islice

from crawlcw.api.settings import described
from crawlcw.api.settings_fields import Headers, Login, Proxies, Webhook

_SECRET = frozenset(
    name for name, field in described() if isinstance(field, Headers | Login | Proxies | Webhook)
)


def own_command(*options: str) -> list[str]:
    """Return the command line of this process, with more *options* and without secrets."""
    run, *rest = sys.argv[1:]
    # The interpreter's options, and the same entry point: `-m`, or a script.
    interpreter = sys.orig_argv[1 : -len(sys.argv[1:])]
    plain, _ = _parted(rest)
    return [sys.executable, *interpreter, run, *options, *plain]


def own_environment() -> dict[str, str]:
    """Return the environment of this process, with the secrets of its command line."""
    _, secrets = _parted(sys.argv[2:])
    return os.environ | {f"CRAWLCW_{name.upper()}": value for name, value in secrets.items()}


def _parted(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without secret settings, and these by name; the last one wins."""
    plain: list[str] = []
    secrets: dict[str, str] = {}
    given = iter(arguments)
    for each in given:
        parts = [each, *islice(given, 1)] if each == "-s" else [each]
        name, _, value = parts[-1].removeprefix("-s").partition("=")
        if each.startswith("-s") and name.strip().lower() in _SECRET:
            secrets[name.strip().lower()] = value.strip()
        else:
            plain += parts
    return plain, secrets
