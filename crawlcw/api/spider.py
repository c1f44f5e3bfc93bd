"""Spider, the class that a user writes: the first pages of a crawl, and their parsing.

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
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar

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
from crawlcw.model.sanitize import redacted
from crawlcw.model.spider_state import State
from crawlcw.model.standstill import Standstill

F = TypeVar("F", bound=Callable[..., Any])

#: A spider's name is the name of its collection; MongoDB and SQLite both take these.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,59}\Z")


#: Attributes of the base class that may be names of arguments.
_OWN = frozenset({"start_urls", "state"})


class _NamedLogger:
    """The logger of a spider: named by it, and made when it is asked for."""

    def __get__(self, spider: "Spider | None", kind: "type[Spider]") -> logging.Logger:
        return logging.getLogger(kind.name or kind.__name__)


class _State:
    """The state of a spider: made when it is asked for, and in memory until a crawl keeps it."""

    def __get__(self, spider: "Spider | None", _: "type[Spider]") -> "State | _State":
        if spider is None:
            return self
        # By a name that does not count among the seeds, see `crawl.seeder`.
        state: State | None = vars(spider).get("__state__")
        if state is None:
            state = vars(spider)["__state__"] = State()
        return state


class Spider:
    """The base of all spiders.

    A callback is a generator, an async generator, a coroutine, or a plain
    function; it yields or returns (an iterable, one thing, or None)
    items and `Request`s. An item is a dict, a dataclass, an attrs or a pydantic
    object.

    Arguments given by `-a key=value` reach the constructor; the base class
    makes attributes of them.
    """

    name: ClassVar[str] = ""
    #: Empty where all pages are added from elsewhere (`crawlcw add`).
    start_urls: Iterable[str] = ()
    #: Hosts that links are followed to, with all below them: `example.com`, or
    #: `example.com:8080` for that port alone; `"*"` for all.
    #: None: the hosts of the start URLs.
    allowed_hosts: ClassVar[Iterable[str] | None] = None
    settings: ClassVar[Settings] = Settings()
    #: What holds for single hosts instead of the settings; the keys are those of `Limits`.
    limits: Mapping[str, Limit] = {}
    #: Which links are followed without code for it, see `Rule`.
    rules: Sequence[Rule] = ()
    #: What requests of pages pass on their way, the outermost first, see `Layer`.
    layers: Sequence[Layer] = ()
    #: Run `start` at each start of a crawl. Otherwise it is not run again once all its requests
    #: are in the ledger, until the spider's arguments, its attributes or the code change.
    start_again: ClassVar[bool] = False

    #: What an item costs that has a value of no known kind: the "page", which fails, or that "item"
    #: alone, which is dropped and counted.
    invalid_items: ClassVar[Literal["page", "item"]] = "page"

    if TYPE_CHECKING:
        #: A logger with the spider's name. An attribute of the spider's own may stand for it.
        logger: logging.Logger
        #: What callbacks keep from page to page, and from run to run: durable, and shared by all
        #: processes. An attribute of the spider's own may stand for it.
        state: State
    else:
        logger = _NamedLogger()
        state = _State()

    #: The session of requests that name none, where the spider has sessions: with `login`,
    #: or `Settings(cookies=True)`.
    default_session: ClassVar[str] = DEFAULT_SESSION
    #: Which answers say that a session is not logged in: a status, several, or a function of
    #: the response. Of spiders with a `login` alone.
    login_when: Any = 401

    #: Which answers say that a proxy, or a session of a pool, is banned, beside the setting
    #: `proxy_ban_statuses`: a status, several, or a function of the response.
    banned_when: Any = None

    _arguments: Mapping[str, Any]  #: the arguments of the constructor

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        """Note the arguments: a constructor of a spider's own may keep them or not."""
        made = super().__new__(cls)
        made._arguments = arguments
        return made

    def __init__(self, **arguments: Any) -> None:
        for key, value in arguments.items():
            # Of these, arguments may be the spider's own.
            if not key.isidentifier() or (hasattr(Spider, key) and key not in _OWN):
                raise SpiderError(
                    f"-a {key}=... cannot be set: the name is taken or not one of Python"
                )
            setattr(self, key, value)

    async def start(self) -> AsyncIterator[Request]:
        """Yield the requests the crawl begins with: by default one for each start URL."""
        for url in self.start_urls:
            yield Request(url)

    def parse(self, response: Response) -> Any:  # noqa: ARG002  # for a spider's own
        """Yield the items and requests of a page. Every spider without `rules` has its own."""
        if self.rules:
            return
        raise NotImplementedError(f"{type(self).__name__} has no parse()")

    def item(self, item: Any, response: Response | None) -> Any:  # noqa: ARG002  # for a spider's own
        """Change an item before it is recorded: return it, or yield several in its place.

        May be `async`. `DropItem` leaves it out, counted by reason. *response* is the
        page that it came from, None for an item of `on_error`.
        """
        return item

    async def login(self, session: LoginSession) -> None:
        """Make a session ready, by `session.fetch` and `session.submit`; what raises has failed.

        Called by one process at a time, when the first page of a session is to be asked
        for, and again when it was logged out.
        """

    def on_error(self, request: Request, error: FetchError) -> Any:
        """Learn that *request* was given up, for *error.reason*.

        May yield items and requests, as a callback may. `error.response` is the
        answer that was the failure, its status, headers and body, where there was one.
        """

    def downloader(self, default: Downloader) -> Downloader:
        """Return the downloader of pages: *default*, one that wraps it, or another.

        Called once in each process, in its loop and before `opened`. The crawl closes
        the returned one, and then *default*.
        """
        return default

    def before_request(self, request: Request) -> Any:
        """Change *request* before it is sent; sync or async.

        Called for each hop of a redirect, with the hop's URL, and not for robots.txt.
        May return another `Request`, or a `Response` that is taken for the answer. The
        URL may change at its own origin only. May raise `FetchError`, which is how the
        attempt ends then, and `StopCrawl`; what else it raises fails the page.
        """

    def after_response(self, response: Response) -> Any:
        """Change *response*, or return another, before it is looked at; sync or async.

        Called for each answer, redirects and error pages included. It may raise
        what `before_request` may.
        """

    def on_stall(self, stall: Standstill) -> Any:
        """Learn that nothing has moved in this process for `stall_after`; sync or async.

        Called once until something moves. `stall.sentence()` says why, `stall.hosts` and
        `stall.until` how many hosts rest and until when. `StopCrawl` ends the crawl; what else
        it raises is logged.
        """

    def on_failure_rate(self, rate: float) -> Any:
        """Learn that over `failure_alarm` of the last 100 attempts failed; sync or async.

        *rate* is their share, from 0 to 1. Called once until it has fallen to half of
        that. May raise what `on_stall` may.
        """

    async def opened(self) -> None:
        """Prepare: called once in each process, before the first page; may be a plain function."""

    async def closed(self, report: Report) -> None:
        """Clean up: called once in each process, after the last page; may be a plain function.

        It is cancelled when `grace` has passed since the end of the crawl, or since the order to
        stop; it then has 2 s at least.
        """


def url_list(callback: F) -> F:
    """Mark a callback of a spider as one that reads a list of URLs, such as a sitemap.

    It is a generator, or an async one. The requests that it yields go to the ledger some
    hundred at a time, while it runs, so that their number takes no memory and is not
    bounded by `max_links_per_page`. They lie as deep as the list itself. Its
    requests stay when it raises; run again, it adds none twice.
    """
    callback.is_url_list = True  # type: ignore[attr-defined]  # a function takes any attribute
    return callback


async def settled(returned: object) -> None:
    """Wait for the result of `opened` or `closed`, which are plain functions or `async`."""
    if inspect.isawaitable(returned):
        await returned


def arguments_of(spider: Spider) -> Mapping[str, Any]:
    """Return the arguments of the spider's constructor, as they were given."""
    return spider._arguments  # noqa: SLF001  # it is its class that is here


@singledispatch
def entry_urls(spider: Spider) -> list[str]:
    """Return the URLs that a spider names itself: its hosts may be at private addresses.

    Kinds of spiders that have others beside the start URLs register a function.
    """
    return list(spider.start_urls)


def has_own_start(spider: Spider) -> bool:
    """Return whether the spider's author wrote its `start`: it may name other hosts than these."""
    return not type(spider).start.__module__.startswith("crawlcw.")


@singledispatch
def check_kind(spider: Spider) -> None:
    """Raise `SpiderError` for a spider that lacks what its kind needs; see `check`."""


def is_name(text: object) -> bool:
    """Return whether *text* can be a spider's name."""
    return isinstance(text, str) and _NAME.match(text) is not None


def check(spider: Spider) -> None:
    """Raise `SpiderError` for a spider that cannot be run as it is written."""
    kind = type(spider).__name__
    if not is_name(spider.name):
        raise SpiderError(
            f"{kind}.name = {spider.name!r}: a spider's name is a letter followed by up to 59 "
            "letters, digits, - and _"
        )
    if isinstance(spider.start_urls, str):
        raise SpiderError(f"{kind}.start_urls is one text: make it a list")
    # It is read more than once, and an iterator would be empty the second time.
    if not isinstance(spider.start_urls, Iterable) or isinstance(spider.start_urls, Iterator):
        raise SpiderError(f"{kind}.start_urls is {spider.start_urls!r}: make it a list")
    if spider.allowed_hosts is not None:
        checked_hosts(spider.allowed_hosts, kind)
    if not isinstance(spider.settings, Settings):
        raise SpiderError(f"{kind}.settings must be a crawlcw.Settings(...)")
    if spider.invalid_items not in ("page", "item"):
        raise SpiderError(f'{kind}.invalid_items is {spider.invalid_items!r}: "page" or "item"')
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
    """Raise `SpiderError` unless all of the attribute *name* are URLs to fetch."""
    for url in getattr(spider, name):
        try:
            urls.locate(url)
        except (FetchError, AttributeError, TypeError) as error:
            named = f"{type(spider).__name__}.{name}: {redacted(repr(url))}"
            raise SpiderError(f"{named} is no URL to fetch: {error}") from None


def _check_no_start(spider: Spider) -> None:
    """Refuse a spider that begins nowhere, unless it says so: then others add its pages."""
    kind = type(spider).__name__
    if spider.start_urls is Spider.start_urls:
        raise SpiderError(
            f"{kind} has neither start_urls nor start(): say where the crawl begins, "
            "or start_urls = [] where `crawlcw add` gives it all its pages"
        )
    if spider.allowed_hosts is None:
        raise SpiderError(
            f"{kind}.start_urls is empty, so nothing is in its scope: name its hosts in "
            'allowed_hosts, or "*" for all'
        )


def _check_item_hook(spider: Spider) -> None:
    """Refuse a callback that happens to be called `item`."""
    try:
        inspect.signature(spider.item).bind({}, None)
    except (TypeError, ValueError):
        raise SpiderError(
            f"{type(spider).__name__}.item() is given each item and its response, "
            "`def item(self, item, response)`: a callback needs another name"
        ) from None


def _check_sessions(spider: Spider) -> None:
    kind = type(spider).__name__
    if not is_session_name(spider.default_session):
        named = f"{kind}.default_session = {spider.default_session!r}"
        raise SpiderError(f"{named} is no name of a session: {SESSION_NAMES}")
    if not inspect.iscoroutinefunction(type(spider).login):
        raise SpiderError(f"{kind}.login() must be `async def login(self, session)`")
    condition(spider, "login_when")
    condition(spider, "banned_when")


def logs_in(spider: Spider) -> bool:
    """Return whether sessions of the spider have to be logged in."""
    return type(spider).login is not Spider.login


def callback_named(spider: Spider, name: str) -> Callable[..., Any]:
    """Return the method that a task names; raises `SpiderError` where the spider has none.

    Names come back from the ledger, so only a public method of the spider's
    own class is ever called.
    """
    method = getattr(spider, name, None) if name.isidentifier() else None
    if name.startswith("__") or not inspect.ismethod(method):
        raise SpiderError(f"{type(spider).__name__} has no callback {name!r}")
    return method


def scope(spider: Spider) -> frozenset[str] | None:
    """Return the hosts that links may lead to, or None where the seeds are to decide it."""
    if spider.allowed_hosts is not None:
        return checked_hosts(spider.allowed_hosts, type(spider).__name__)
    if named := entry_urls(spider):
        return frozenset(urls.locate(url).host for url in named)
    return None
