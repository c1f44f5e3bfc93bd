"""Decide the Referer of a request from the URL and the policy of the page with the link.

The policies are those of the W3C's Referrer Policy. A Referer never has a user, a password or a
fragment. Unlike in the W3C's policies, no request by http gets the URL of a page by https.
"""

from collections.abc import Iterable

from crawlcw.errors import FetchError
from crawlcw.model import urls

DEFAULT_POLICY = "strict-origin-when-cross-origin"
_POLICIES = frozenset(
    {
        *("no-referrer", "no-referrer-when-downgrade", "same-origin", "origin", "strict-origin"),
        *("origin-when-cross-origin", DEFAULT_POLICY, "unsafe-url"),
    }
)
#: Policies under which a request to another origin gets the whole URL of the page.
_WHOLE = frozenset({"no-referrer-when-downgrade", "unsafe-url"})
#: Policies under which a request to the page's own origin gets the whole URL of the page.
_WHOLE_AT_HOME = _WHOLE | {"same-origin", "origin-when-cross-origin", DEFAULT_POLICY}
#: Old names of policies in a <meta> (HTML, section 4.2.5.1).
_OLD_NAMES = {
    "never": "no-referrer",
    "default": DEFAULT_POLICY,
    "always": "unsafe-url",
    "origin-when-crossorigin": "origin-when-cross-origin",
}
#: Maximum length of a whole URL as a Referer; a longer one is cut to its origin (section 8.3).
_MAX_LENGTH = 4096


def policy_of(header: str | None, metas: Iterable[str]) -> str:
    """Return a page's policy: the last valid one of its Referrer-Policy header and its <meta>s."""
    policies = [DEFAULT_POLICY]
    policies += [text.strip().lower() for text in (header or "").split(",")]
    for content in metas:
        text = content.strip().lower()
        policies.append(_OLD_NAMES.get(text, text))
    return next(policy for policy in reversed(policies) if policy in _POLICIES)


def referer(page_url: str, target_url: str, *, policy: str) -> str | None:
    """Return the Referer of a request for *target_url* from a page, or None if it gets none."""
    try:
        address = urls.locate(page_url).url
        origin, target_origin = urls.origin_of(address), urls.origin_of(target_url)
    except FetchError:
        return None
    is_downgrade = origin.startswith("https:") and target_origin.startswith("http:")
    if policy == "no-referrer" or is_downgrade:
        return None
    is_home = origin == target_origin
    if policy == "same-origin" and not is_home:
        return None
    if policy in (_WHOLE_AT_HOME if is_home else _WHOLE) and len(address) <= _MAX_LENGTH:
        return address
    return f"{origin}/"
