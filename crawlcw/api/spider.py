"""Define the class `Spider`; users write a subclass to name the first pages and parse every page.

    class Books(Spider):
        name = "books"
        start_urls = ["https://books.toscrape.com/"]

        def parse(self, response):
            yield {"title": response.css_first("h1").text()}
            yield from response.follow_all("li.next a")

A callback yields items and requests, in any order.
"""

import inspect
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import singledispatch
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

from crawlcw.api import rules
from crawlcw.api.attempt import Downloader, Layer, check_layers
from crawlcw.api.host_limits import Limit, Limits, checked_hosts
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.rules import Rule
from crawlcw.api.sessions import LoginSession, condition
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, SettingsError, SpiderError
from crawlcw.model import urls
from crawlcw.model.counters import Report
from crawlcw.model.identities import DEFAULT_SESSION, SESSION_NAMES, is_session_name
from crawlcw.model.idle_reason import IdleReason
from crawlcw.model.sanitize import redacted
from crawlcw.model.spider_state import State

F = TypeVar("F", bound=Callable[..., Any])

#: A spider's name, which is also the name of its collection in MongoDB and SQLite.
_SPIDER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,59}\Z")


#: Attributes of the base class that a constructor argument may set.
_SETTABLE_ATTRIBUTES = frozenset({"start_urls", "state"})


#: The attribute with a spider's `RunningCrawl`, which is not part of the spider's fingerprint.
RUNNING_CRAWL = "__crawl__"
#: The callback of a request in an item, if the spider names no other callback.
FILE_CALLBACK = "_file_saved"


class RunningCrawl(Protocol):
    """The methods of a running crawl for its spider."""

    async def has_pages(self) -> bool:
        """See `Spider.has_pages`."""

    async def fetch(self, request: Request) -> Response:
        """See `Spider.fetch`."""


class _NamedLogger:
    """The logger of a spider, with the spider's name, made at the first access."""

    def __get__(self, spider: "Spider | None", spider_class: "type[Spider]") -> logging.Logger:
        return logging.getLogger(spider_class.name or spider_class.__name__)


class _State:
    """Makes a spider's state at the first access; a crawl stores the state later."""

    def __get__(self, spider: "Spider | None", _: "type[Spider]") -> "State | _State":
        if spider is None:
            return self
        # `__state__` begins with two underscores, because such attributes are not part of the
        # spider's fingerprint (`crawl.seeder`).
        state: State | None = vars(spider).get("__state__")
        if state is None:
            state = vars(spider)["__state__"] = State()
        return state


class Spider:
    """The base class of all spiders.

    A callback is a generator, an async generator, a coroutine, or a plain function. A callback
    yields items and `Request`s, or returns an iterable of them. It may also return a single item, a
    single `Request`, or None. An item is a dict, a dataclass, an attrs or a pydantic object.

    The command line passes the arguments `-a key=value` to the constructor,
    and the base class stores them as attributes.
    """

    name: ClassVar[str] = ""
    #: The URLs of the first pages; empty if other programs add all pages (`crawlcw add`).
    start_urls: Iterable[str] = ()
    #: Hosts that links may lead to, with their subdomains: `example.com`, or `example.com:8080` for
    #: one port; `"*"` for all hosts. With None, links may lead to the hosts of the start URLs.
    allowed_hosts: ClassVar[Iterable[str] | None] = None
    settings: ClassVar[Settings] = Settings()
    #: Limits for single hosts, which replace the settings' limits. A key is a host with or without
    #: a port (`shop.example.com`), the subdomains of a host (`*.example.com`), or all hosts (`*`).
    #: If several keys match, the most specific key counts.
    limits: Mapping[str, Limit] = {}
    #: The links that the spider follows without code, see `Rule`.
    rules: Sequence[Rule] = ()
    #: The layers that each page's request passes, the outermost first, see `Layer`.
    layers: Sequence[Layer] = ()
    #: Whether to run `start` at each start of a crawl. If False, a later crawl runs `start` again
    #: in two cases: the ledger does not have all requests of `start`, or the spider's arguments,
    #: attributes or code have changed.
    start_again: ClassVar[bool] = False

    #: What fails if an item has a value of an unknown type. With "page" the item's page fails; with
    #: "item" the crawl drops and counts only this item.
    invalid_items: ClassVar[Literal["page", "item"]] = "page"

    #: The key of an item: the name of a field, or a method `item_key(self, item)`. A ledger keeps
    #: one item for each key. An item whose key is None is always recorded.
    item_key: Any = None
    #: Which of the items with one key the ledger keeps: the "first" or the "last" recorded.
    item_key_wins: ClassVar[Literal["first", "last"]] = "first"
    #: The library behind `response.css` and `css_first`. "lexbor" returns nodes, which are fast.
    #: "parsel" returns selectors as in Scrapy, with `::text`, `.attrib` and `.re_first`.
    selectors: ClassVar[Literal["lexbor", "parsel"]] = "lexbor"

    if TYPE_CHECKING:
        #: A logger with the spider's name; a spider may replace it by its own attribute `logger`.
        logger: logging.Logger
        #: A mapping in the ledger, in which callbacks keep values for later pages, other processes
        #: and later runs. A spider may replace this mapping by its own attribute `state`.
        state: State
    else:
        logger = _NamedLogger()
        state = _State()

    #: The name of the session for requests that name no session. A spider has sessions if it has a
    #: `login` or sets `Settings(cookies=True)`.
    default_session: ClassVar[str] = DEFAULT_SESSION
    #: Which responses mean that a session is logged out: a status, several statuses, or a function
    #: of the response. The crawl uses `login_when` only if the spider has a `login`.
    login_when: Any = 401

    #: Which responses mean that a site has banned a proxy or a session of a pool: a status, several
    #: statuses, or a function of the response. The statuses of the setting `proxy_ban_statuses`
    #: also mean a ban.
    banned_when: Any = None

    _arguments: Mapping[str, Any]  #: of the constructor

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        """Store the arguments, because a spider's own constructor may not store them."""
        spider = super().__new__(cls)
        spider._arguments = arguments
        return spider

    def __init__(self, **arguments: Any) -> None:
        for key, value in arguments.items():
            # An argument must not replace an attribute of the base class, except a settable
            # attribute.
            if not key.isidentifier() or (hasattr(Spider, key) and key not in _SETTABLE_ATTRIBUTES):
                raise SpiderError(
                    f"-a {key}=... cannot be set: the name is in use or not a Python name"
                )
            setattr(self, key, value)

    async def start(self) -> AsyncIterator[Request]:
        """Yield the first requests of the crawl, by default a request for each start URL."""
        for url in self.start_urls:
            yield Request(url)

    def parse(self, response: Response) -> Any:  # noqa: ARG002  # for overrides
        """Yield the items and requests of a page; a spider without `rules` must define `parse`."""
        if self.rules:
            return
        raise NotImplementedError(f"{type(self).__name__} has no parse()")

    def item(self, item: Any, response: Response | None) -> Any:  # noqa: ARG002  # for overrides
        """Change an item before the ledger records it: return the item, or yield several items.

        May be `async`. If the hook raises `DropItem`, the item is dropped and counted by reason.
        *response* is the page of the item, or None for an item of `on_error`.
        """
        return item

    async def login(self, session: LoginSession) -> None:
        """Log in with `session.fetch` and `session.submit`; an error means a failed login.

        One process at a time calls `login`, before the first page of a session, and again when the
        session was logged out.
        """

    def _file_saved(self, response: Response) -> None:
        """The callback of a request in an item, unless the request has another callback."""

    def on_error(self, request: Request, error: FetchError) -> Any:
        """Called when the crawl gives up *request*; *error.reason* says why.

        The hook may yield items and requests, like a callback. `error.response` is the response
        that counted as the failure, with status, headers and body, if there was one.
        """

    def downloader(self, default: Downloader) -> Downloader:
        """Return the downloader of pages: *default*, a wrapper of it, or a different downloader.

        Each process calls `downloader` once, in its event loop and before `opened`. The crawl
        closes the returned downloader, and then closes *default*.
        """
        return default

    def before_request(self, request: Request) -> Any:
        """Change *request* before it is sent; sync or async.

        The crawl calls the hook for each hop of a redirect, with the hop's URL, but not for
        robots.txt.

        - The hook may return another `Request`, or a `Response` that the crawl uses instead of
          sending the request.
        - The hook may change the URL only within the same origin.
        - The hook may raise `FetchError`, which ends the attempt, or `StopCrawl`. Any other error
          of the hook fails the page.
        """

    def after_response(self, response: Response) -> Any:
        """Change *response*, or return another response, before the crawl reads it; sync or async.

        The crawl calls the hook for each response, including redirects and error pages. The hook
        may raise the same errors as `before_request`.
        """

    def on_idle(self, reason: IdleReason) -> Any:
        """Called when this process has made no progress for `idle_after`; sync or async.

        The crawl calls `on_idle` again only after progress. `reason.sentence()` says why;
        `reason.hosts` and `reason.ends_at` say how many hosts are paused after failures, and until
        when. `StopCrawl` ends the crawl; any other error is logged.
        """

    def on_failure_rate(self, rate: float) -> Any:
        """Called if over `failure_alarm` of the last 100 attempts have failed; sync or async.

        *rate* is the share of failures, from 0 to 1. The crawl calls `on_failure_rate` again only
        after the share has fallen to half of `failure_alarm`. The hook may raise the same errors as
        `on_idle`.
        """

    async def has_pages(self) -> bool:
        """Return whether the ledger has a page that is not done, so that `start` can wait for all.

        Pages of other processes count too. Raises `SpiderError` outside of a crawl.
        """
        return await _running_crawl(self, "has_pages").has_pages()

    async def fetch(self, request: Request) -> Response:
        """Return the response to *request*, whatever its status is.

        `start`, hooks and layers call `fetch`; a callback calls `Response.fetch`. The request has
        no task and no session. The crawl does not retry it, and passes it through no hook and no
        layer without `wire`, because a hook would call itself. Otherwise `fetch` does the same as
        `Response.fetch`, without a limit of the number of requests. Raises `FetchError` if there is
        no response, and `SpiderError` outside of a crawl.
        """
        return await _running_crawl(self, "fetch").fetch(request)

    async def opened(self) -> None:
        """Called once in each process, before the process's first page; may be a plain function."""

    async def closed(self, report: Report) -> None:
        """Called once in each process, after the process's last page; may be a plain function.

        The time `grace` (a setting) begins when the crawl ends or is ordered to stop. The crawl
        cancels `closed` at the end of this time, but gives `closed` at least 2 s.
        """


def _running_crawl(spider: Spider, method: str) -> RunningCrawl:
    crawl: RunningCrawl | None = vars(spider).get(RUNNING_CRAWL)
    if crawl is None:
        name = type(spider).__name__
        raise SpiderError(f"{name}.{method}() works only while a crawl runs: call it in a callback")
    return crawl


def url_list(callback: F) -> F:
    """Mark a callback that reads a list of URLs, such as a sitemap.

    The callback is a generator or an async generator. While the callback runs, the crawl writes the
    callback's requests to the ledger in batches of some hundred. A list of URLs of any length thus
    fits into memory, and `max_links_per_page` does not apply. `max_depth` does not count the step
    from the list to its URLs. If the callback raises, the ledger keeps the requests that the
    callback has yielded. A rerun of the callback adds no request twice.
    """
    callback.is_url_list = True  # type: ignore[attr-defined]  # a function takes any attribute
    return callback


async def settled(returned: object) -> None:
    """Await *returned*, the result of `opened` or `closed`, if the hook is `async`."""
    if inspect.isawaitable(returned):
        await returned


def arguments_of(spider: Spider) -> Mapping[str, Any]:
    """Return the arguments of the spider's constructor, unchanged."""
    return spider._arguments  # noqa: SLF001  # this module defines the class


@singledispatch
def entry_urls(spider: Spider) -> list[str]:
    """Return the URLs that a spider itself names; their hosts may have private addresses.

    A subclass of `Spider` that names more URLs registers a function by `entry_urls.register`.
    """
    return list(spider.start_urls)


def has_own_start(spider: Spider) -> bool:
    """Return whether the spider has its own `start`, which may request any host."""
    return not type(spider).start.__module__.startswith("crawlcw.api.")


@singledispatch
def check_kind(spider: Spider) -> None:
    """Raise `SpiderError` if *spider* lacks what its base class requires; see `check`."""


def is_name(text: object) -> bool:
    """Return whether *text* can be a spider's name."""
    return isinstance(text, str) and _SPIDER_NAME.match(text) is not None


def check(spider: Spider) -> None:
    """Raise `SpiderError` for a spider that crawlcw cannot run."""
    kind = type(spider).__name__
    if not is_name(spider.name):
        raise SpiderError(
            f"{kind}.name = {spider.name!r}: a spider's name is a letter followed by up to 59 "
            "letters, digits, - and _"
        )
    if isinstance(spider.start_urls, str):
        raise SpiderError(f"{kind}.start_urls is a single text: write a list")
    # Refuse an iterator, because the crawl reads `start_urls` more than once.
    if not isinstance(spider.start_urls, Iterable) or isinstance(spider.start_urls, Iterator):
        raise SpiderError(f"{kind}.start_urls is {spider.start_urls!r}: write a list")
    if spider.allowed_hosts is not None:
        checked_hosts(spider.allowed_hosts, kind)
    if not isinstance(spider.settings, Settings):
        raise SpiderError(f"{kind}.settings must be a crawlcw.Settings(...)")
    if spider.invalid_items not in ("page", "item"):
        raise SpiderError(
            f'{kind}.invalid_items is {spider.invalid_items!r}: write "page" or "item"'
        )
    _check_selectors(spider)
    _check_item_key(spider)
    _check_item_hook(spider)
    rules.check(spider.rules, type(spider))
    try:
        Limits(spider.limits)
    except SettingsError as error:
        raise SpiderError(f"{kind}.{error}") from None
    _check_sessions(spider)
    check_layers(spider.layers, kind)
    if type(spider).start is Spider.start and not list(spider.start_urls):
        _check_no_start(spider)
    if not inspect.isasyncgenfunction(type(spider).start):
        raise SpiderError(f"{kind}.start() must be `async def` and yield requests")
    check_urls(spider, "start_urls")
    check_kind(spider)


def check_urls(spider: Spider, name: str) -> None:
    """Raise `SpiderError` unless crawlcw can fetch every URL in the attribute *name*."""
    for url in getattr(spider, name):
        try:
            urls.locate(url)
        except (FetchError, AttributeError, TypeError) as error:
            label = f"{type(spider).__name__}.{name}: {redacted(repr(url))}"
            raise SpiderError(f"{label} is not a URL that crawlcw can fetch: {error}") from None


def _check_no_start(spider: Spider) -> None:
    """Refuse a spider without first requests if it lacks `start_urls = []` or `allowed_hosts`."""
    kind = type(spider).__name__
    if spider.start_urls is Spider.start_urls:
        raise SpiderError(
            f"{kind} has neither start_urls nor start(): define one of them, or write "
            "start_urls = [] if `crawlcw add` adds all pages"
        )
    if spider.allowed_hosts is None:
        raise SpiderError(
            f"{kind}.start_urls is empty, so the crawl would follow no link: write its hosts "
            'in allowed_hosts, or "*" for all'
        )


def _check_selectors(spider: Spider) -> None:
    label = f"{type(spider).__name__}.selectors = {spider.selectors!r}"
    if spider.selectors not in ("lexbor", "parsel"):
        raise SpiderError(f'{label}: write "lexbor" or "parsel"')
    if spider.selectors == "parsel" and find_spec("parsel") is None:
        raise SpiderError(f"{label} needs parsel: install it with `pip install 'crawlcw[xpath]'`")


def _check_item_key(spider: Spider) -> None:
    kind = type(spider).__name__
    if not (
        spider.item_key is None or isinstance(spider.item_key, str) or callable(spider.item_key)
    ):
        raise SpiderError(
            f"{kind}.item_key = {spider.item_key!r}: write the name of a field, or a method "
            "`def item_key(self, item)`"
        )
    if spider.item_key_wins not in ("first", "last"):
        label = f"{kind}.item_key_wins = {spider.item_key_wins!r}"
        raise SpiderError(f'{label}: write "first" or "last"')


def _check_item_hook(spider: Spider) -> None:
    """Refuse a callback named `item`, which would replace the hook `item`."""
    try:
        inspect.signature(spider.item).bind({}, None)
    except (TypeError, ValueError):
        raise SpiderError(
            f"{type(spider).__name__}.item() must be `def item(self, item, response)`, because "
            "crawlcw calls it with each item: give a callback another name"
        ) from None


def _check_sessions(spider: Spider) -> None:
    kind = type(spider).__name__
    if not is_session_name(spider.default_session):
        label = f"{kind}.default_session = {spider.default_session!r}"
        raise SpiderError(f"{label} is not a valid session name: {SESSION_NAMES}")
    if not inspect.iscoroutinefunction(type(spider).login):
        raise SpiderError(f"{kind}.login() must be `async def login(self, session)`")
    condition(spider, "login_when")
    condition(spider, "banned_when")


def logs_in(spider: Spider) -> bool:
    """Return whether the spider has a `login`, which logs its sessions in."""
    return type(spider).login is not Spider.login


def callback_named(spider: Spider, name: str) -> Callable[..., Any]:
    """Return the spider's method *name*; raises `SpiderError` if the spider has no such method.

    Callback names come from the ledger, so a name such as `__init__` is refused.
    """
    method = getattr(spider, name, None) if name.isidentifier() else None
    if name.startswith("__") or not inspect.ismethod(method):
        raise SpiderError(f"{type(spider).__name__} has no callback {name!r}")
    return method


def scope(spider: Spider) -> frozenset[str] | None:
    """Return the hosts that links may lead to, or None if the hosts of the seeds are allowed."""
    if spider.allowed_hosts is not None:
        return checked_hosts(spider.allowed_hosts, type(spider).__name__)
    if seed_urls := entry_urls(spider):
        return frozenset(urls.locate(url).host for url in seed_urls)
    return None
