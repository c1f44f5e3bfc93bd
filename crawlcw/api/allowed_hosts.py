"""The hosts that a spider says its links may lead to, as tasks have them.

One that no task's host can ever be would drop every link without a word.
"""

from collections.abc import Iterable, Iterator

from crawlcw.api.host_limits import DEFAULT_PORTS, NOT_IN_HOSTS
from crawlcw.errors import FetchError, SpiderError
from crawlcw.model import urls
from crawlcw.model.sanitize import redacted

_ALL = "*"


def checked(allowed: object, kind: str) -> frozenset[str]:
    """Return the hosts that *allowed* names, which `kind.allowed_hosts` is.

    Raises `SpiderError` for what is no list, and for one of it that names no host.
    """
    if isinstance(allowed, str) and allowed != _ALL:
        raise SpiderError(f"{kind}.allowed_hosts is one text: make it a list")
    # It is read more than once, and an iterator would be empty the second time.
    if not isinstance(allowed, Iterable) or isinstance(allowed, Iterator):
        raise SpiderError(f"{kind}.allowed_hosts is {allowed!r}: make it a list")
    return frozenset(_host(each, kind) for each in allowed)


def _host(written: object, kind: str) -> str:
    name = written.strip() if isinstance(written, str) else ""
    if name == _ALL:
        return name
    mistake = SpiderError(
        # It may be a URL with a password.
        f"{kind}.allowed_hosts: {redacted(repr(written))} is no host: write example.com for it "
        'and all hosts below it, example.com:8080 for that port alone, or "*" for all'
    )
    if not name or NOT_IN_HOSTS.search(name):
        raise mistake
    try:
        host = urls.locate(f"http://{name}/").host
    except FetchError:
        raise mistake from None
    if host.startswith("."):
        raise mistake
    if name.endswith(tuple(f":{port}" for port in DEFAULT_PORTS)):
        # A task's host has neither, see `urls.Location`: none would be this one.
        raise SpiderError(
            f"{kind}.allowed_hosts: {name!r}: leave out the port, 80 and 443 are not in the "
            "names of hosts"
        )
    return host
