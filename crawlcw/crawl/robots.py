"""robots.txt by RFC 9309: the URLs that a site lets us fetch, and its delay. Protego parses rules.

A 4xx status allows every URL. After 5xx, 429 and network errors the rules are unknown, and no page
of the host is fetched until the rules are known. A host's owner fetches robots.txt once a day, and
the ledger keeps robots.txt for the other processes.
"""

import asyncio
import codecs
import logging
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from functools import partial

from protego import Protego

from crawlcw.api.attempt import Attempt, Next, Purpose
from crawlcw.api.page_head import product_token
from crawlcw.api.request import Request
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, ProxiesAwayError, Reason
from crawlcw.fetch.redirects import status_error, throttles
from crawlcw.fetch.user_layers import SpiderFaultError
from crawlcw.model import urls
from crawlcw.model.hosts import RobotsRecord
from crawlcw.model.sanitize import printable

logger = logging.getLogger(__name__)

LARGEST = 512 * 1024
LONGEST_CRAWL_DELAY = 60.0
_MAX_ORIGINS = 10_000
VALID = timedelta(hours=24)
#: Matches each line of robots.txt that protego may read as the name of an agent.
_USER_AGENT = re.compile(r"\s*user(?:-|\s+)?agent(?:\s*:|\s)(.*)", re.IGNORECASE | re.DOTALL)
#: Match lines with a rule, a sitemap or a delay, in every spelling that protego accepts.
_RULE = re.compile(r"\s*(?:d[is]+al+[ao]w|diasllow|allow)(?:\s|:|$)", re.IGNORECASE)
_SITEMAP = re.compile(r"\s*site-?maps?(?:\s|:|$)", re.IGNORECASE)
_CRAWL_DELAY = re.compile(r"\s*crawl[- ]delay(?:\s|:|$)", re.IGNORECASE)
_SLASH = re.compile("%2f", re.IGNORECASE)
#: Matches `Disallow` in every spelling that protego accepts; a file without it allows every URL.
_DISALLOW = re.compile(r"d[ias]+l+[ao]w", re.IGNORECASE)
#: Agent name for groups of other crawlers; no crawler has this name, because names have no slash.
_NO_GROUP = "/"
#: After an unusual error, robots.txt is not requested again for these seconds. Without this pause,
#: each page of the host would request robots.txt.
_ERROR_TTL_S = 30.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a robots.txt for this crawler."""

    parsed: Protego | None = None  #: None if every URL is allowed
    agent: str = ""
    crawl_delay: float = 0.0  #: seconds, at most 60
    sitemaps: tuple[str, ...] = field(default=())
    body: str = ""  #: text of robots.txt; empty if the server does not have the file

    def allows(self, url: str) -> bool:
        """Return whether *url* may be fetched; robots.txt itself may always be fetched."""
        if self.parsed is None or url == f"{urls.origin_of(url)}/robots.txt":
            return True  # RFC 9309, section 2.2.2
        return bool(self.parsed.can_fetch(_with_slashes(url), self.agent))

    def check(self, url: str) -> None:
        """Raise `FetchError` (`refused-robots`) if *url* may not be fetched."""
        if not self.allows(url):
            raise FetchError(Reason.REFUSED_ROBOTS, f"robots.txt disallows {url}")


ALLOW_ALL = Rules()


@dataclass
class Robots:
    """Fetches the robots.txt of every origin, and keeps its rules for a day."""

    ask: Next
    settings: Settings
    _: KW_ONLY
    clock: Callable[[], float]  #: returns monotonic seconds, for the age of rules
    now: Callable[[], datetime]  #: returns the time of day
    #: Function to call with each origin whose rules have been fetched.
    learned: Callable[[str], None] = lambda _: None
    _rules_by_origin: OrderedDict[str, tuple[float, asyncio.Future[Rules]]] = field(
        init=False, default_factory=OrderedDict
    )

    def __post_init__(self) -> None:
        self._agent = product_token(self.settings.user_agent)

    async def rules(self, url: str) -> Rules:
        """Return the rules for *url*'s origin; concurrent callers share one request.

        Raises `FetchError` (`robots-unavailable`) if the rules cannot be fetched.
        """
        if not self.settings.obey_robots:
            return ALLOW_ALL
        origin = urls.origin_of(url)
        expires, rules_future = self._rules_by_origin.get(origin, (0.0, None))
        if rules_future is None or self.clock() >= expires:
            # Send the request in a separate asyncio task, because a cancelled caller must not
            # cancel the request for other callers.
            rules_future = asyncio.ensure_future(self._fetch(origin))
            self._remember(origin, rules_future, VALID.total_seconds())
            rules_future.add_done_callback(partial(self._note_answer, origin))
        return await asyncio.shield(rules_future)

    def known_rules(self, url: str, record: RobotsRecord | None = None) -> Rules | None:
        """Return the rules for *url*'s origin from memory or from *record*; None without rules."""
        if not self.settings.obey_robots:
            return ALLOW_ALL
        origin = urls.origin_of(url)
        expires, rules_future = self._rules_by_origin.get(origin, (0.0, None))
        is_current = rules_future is not None and rules_future.done() and self.clock() < expires
        if rules_future is not None and is_current and not rules_future.exception():
            return rules_future.result()
        if record is None or record.origin != origin:
            return None
        valid_s = (record.expires - self.now()).total_seconds()
        if valid_s <= 0:
            return None
        body = record.body.encode()
        rules = parse(body, agent=self._agent) if body else ALLOW_ALL
        rules_future = asyncio.get_running_loop().create_future()
        rules_future.set_result(rules)
        self._remember(origin, rules_future, valid_s)
        return rules

    async def admit(self, url: str) -> None:
        """Raise `FetchError` (`refused-robots`) if robots.txt disallows *url*."""
        (await self.rules(url)).check(url)

    def crawl_delay(self, host: str) -> float:
        """Return the longest Crawl-delay of the known origins of a host, in seconds."""
        http_rules, https_rules = (
            self.known_rules(f"http://{host}"),
            self.known_rules(f"https://{host}"),
        )
        return max((http_rules or ALLOW_ALL).crawl_delay, (https_rules or ALLOW_ALL).crawl_delay)

    async def close(self) -> None:
        """Cancel the requests in progress for robots.txt."""
        for _, rules_future in self._rules_by_origin.values():
            rules_future.cancel()
        await asyncio.gather(
            *(future for _, future in self._rules_by_origin.values()), return_exceptions=True
        )

    def _remember(self, origin: str, rules_future: asyncio.Future[Rules], valid_s: float) -> None:
        self._rules_by_origin[origin] = (self.clock() + valid_s, rules_future)
        while (
            len(self._rules_by_origin) > _MAX_ORIGINS
            and next(iter(self._rules_by_origin.values()))[1].done()
        ):
            self._rules_by_origin.popitem(last=False)

    def _note_answer(self, origin: str, rules_future: asyncio.Future[Rules]) -> None:
        error = None if rules_future.cancelled() else rules_future.exception()
        is_unavailable = isinstance(error, FetchError) and error.reason is Reason.ROBOTS_UNAVAILABLE
        if is_unavailable or isinstance(error, ProxiesAwayError | SpiderFaultError):
            # Forget the error, so that the next caller sends a new request after the host's rest.
            self._rules_by_origin.pop(origin, None)
        elif error is not None:
            self._rules_by_origin[origin] = (self.clock() + _ERROR_TTL_S, rules_future)
        elif not rules_future.cancelled():
            self.learned(origin)

    async def _fetch(self, origin: str) -> Rules:
        try:
            # Do not use the settings of accepted statuses and sizes, because they are for pages.
            url = f"{origin}/robots.txt"
            request = Request(url, accept_statuses=(), max_body=LARGEST, truncate=True)
            attempt = Attempt(request=request, purpose=Purpose.ROBOTS, may_wait=False)
            # The page that waits for the rules has a slot of this host, so no other slot is taken.
            # A redirect to another host takes a slot of the other host.
            attempt.slot, attempt.slot_host = _no_slot, urls.locate(url).host
            async with attempt:
                response = await self.ask(attempt, request)
        except FetchError as error:
            if error.reason in (Reason.REDIRECT_LIMIT, Reason.REDIRECT_LOOP):
                return ALLOW_ALL  # allow all, as without a robots.txt (RFC 9309, section 2.3.1.2)
            is_behind = error.hop > 1
            is_for_good = error.reason in (Reason.REFUSED_ADDRESS, Reason.REFUSED_PORT)
            if is_for_good and not is_behind:
                raise  # the pages of the origin fail for the same reason
            if isinstance(error, ProxiesAwayError | SpiderFaultError):
                raise  # no request was sent
            message = f"{error.reason} {printable(error.message)}".strip()
            if is_behind:
                # The rules are unreachable (RFC 9309, section 2.3.1.4). The cause is the target of
                # a redirect; the origin itself did answer with the redirect.
                message = f"after its redirect: {message}"
            unknown = FetchError(Reason.ROBOTS_UNAVAILABLE, message)
            unknown.proxy = error.proxy
            unknown.port_closed = error.port_closed and not is_behind
            raise unknown from None if is_behind else error
        if throttles(response, self.settings.throttle_statuses) or response.status >= 500:
            raise status_error(response, now=self.now(), reason=Reason.ROBOTS_UNAVAILABLE)
        if not 200 <= response.status < 300:
            return ALLOW_ALL
        if response.truncated == "coding":
            # The missing part of robots.txt may disallow almost every URL.
            raise FetchError(Reason.ROBOTS_UNAVAILABLE, "its compressed content is incomplete")
        return parse(response.body, agent=self._agent)


def parse(body: bytes, *, agent: str) -> Rules:
    """Return the rules of a robots.txt for *agent*; a file without valid lines has no rules."""
    # Accept UTF-16 with a byte order mark, although RFC 9309, section 2.2, allows only UTF-8.
    encoding = "utf-16" if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8"
    text = body[:LARGEST].decode(encoding, "replace").removeprefix("\ufeff")
    # Cut the decoded text again, because each invalid byte has become three bytes of UTF-8.
    text = text.encode()[:LARGEST].decode("utf-8", "ignore")
    protego_rules = Protego.parse(_without_others(text, agent=agent))
    delay = protego_rules.crawl_delay(agent) or 0.0
    # A delay of `nan` becomes 0, because `nan > 0` is false.
    delay = min(delay, LONGEST_CRAWL_DELAY) if delay > 0 else 0.0
    sitemaps = tuple(protego_rules.sitemaps)
    if not _DISALLOW.search(text):
        return Rules(crawl_delay=delay, sitemaps=sitemaps, body=text)
    return Rules(protego_rules, agent, delay, sitemaps, text)


def _no_slot() -> None:
    """Free no slot, because the slot belongs to the page that waits for the rules."""


def _without_others(text: str, *, agent: str) -> str:
    """Return a copy of a robots.txt in which the groups name only agents that match *agent*.

    protego copies a group's rules for each agent, so parsing a file with 1,000 agents and 1,000
    rules took 50 s and 500 MiB.
    """
    rule_lines: list[str] = []
    agent_lines: list[str] = []
    delay, is_named = "", False
    for line in text.splitlines():
        if match := _USER_AGENT.match(line):
            agents = [name.strip() for name in match[1].partition("#")[0].split(",")]
            # Compare the whole product token, whatever its version (RFC 9309, section 2.2.1).
            # protego would also match `crawl` with `crawler`, and `goo*gle` with `google`.
            group_tokens = {product_token(name).rstrip("*").lower() for name in agents if name}
            group = agent if agent.lower() in group_tokens else "*" if "*" in agents else _NO_GROUP
            if not is_named:
                agent_lines, delay, is_named = [], "", True
            agent_lines.append(f"User-agent: {group}")
            rule_lines += [agent_lines[-1], delay]
        elif _CRAWL_DELAY.match(line):
            rule_lines.append(line)
            delay = line
        elif _RULE.match(line):
            if is_named and delay:
                # Repeat the group's names, because protego ends the list of names at a
                # `Crawl-delay` line. By RFC 9309, section 2.2.4, only the first rule ends the list.
                rule_lines += agent_lines
            is_named = False
            rule_lines += _spellings(line)
        elif _SITEMAP.match(line):
            rule_lines.append(line)
    return "\n".join(rule_lines)


def _with_slashes(text: str) -> str:
    """Return a URL, or a rule, with the slashes in its query unescaped.

    protego distinguishes `/` and `%2F`, but a query does not (RFC 9309, section 2.2.2).
    """
    path, mark, query = text.partition("?")
    return f"{path}?{_SLASH.sub('/', query)}" if mark and "%2" in query else text


def _spellings(rule: str) -> list[str]:
    """Return the spellings of a rule that match URLs with unescaped slashes in the query."""
    prefix, star, suffix = rule.partition("*")
    if star and "?" not in rule and _SLASH.search(suffix):
        # Return two spellings, because the end of the rule may match in the path or in the query.
        return [rule, f"{prefix}*{_SLASH.sub('/', suffix)}"]
    return [_with_slashes(rule)]
