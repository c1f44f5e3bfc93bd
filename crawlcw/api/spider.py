"""What a user writes: where a crawl begins and what its pages mean.

    class Books(Spider):
        name = "books"
        start_urls = ["https://books.toscrape.com/"]

        def parse(self, response):
            yield {"title": response.css_first("h1").text()}
            yield from response.follow_all("li.next a")

A callback yields items and requests, in any order.
"""

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

from crawlcw.api.host_limits import Limit, Limits
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.errors import FetchError, SettingsError, SpiderError
from crawlcw.model import urls

if TYPE_CHECKING:
    from crawlcw.engine.stats import Report

#: A spider's name is the name of its collection; MongoDB and SQLite both take these.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,59}\Z")


class Spider:
    """The base of all spiders.

    A callback is a generator, an async generator, a coroutine, or a plain
    function; what it yields or returns (an iterable, one thing, or None) is
    items and `Request`s. An item is a dict, a dataclass, an attrs or a pydantic
    object.

    Arguments given by `-a key=value` reach the constructor; the base class
    makes attributes of them.
    """

    name: ClassVar[str] = ""
    start_urls: Iterable[str] = ()
    #: Hosts that links are followed to, with all below them; `"*"` for all.
    #: None: the hosts of the start URLs.
    allowed_hosts: ClassVar[Iterable[str] | None] = None
    settings: ClassVar[Settings] = Settings()
    #: What holds for single hosts instead of the settings; the keys are those of `Limits`.
    limits: Mapping[str, Limit] = {}
    #: Run `start` at each start of a crawl. Otherwise it is not run again once all its requests
    #: are in the ledger, until the spider's arguments, its attributes or the code change.
    start_again: ClassVar[bool] = False

    _arguments: Mapping[str, Any]  #: what the constructor was given

    def __new__(cls, *_: Any, **arguments: Any) -> Self:
        """Note the arguments: a constructor of a spider's own may keep them or not."""
        made = super().__new__(cls)
        made._arguments = arguments
        return made

    def __init__(self, **arguments: Any) -> None:
        for key, value in arguments.items():
            if not key.isidentifier() or (hasattr(Spider, key) and key != "start_urls"):
                raise SpiderError(f"-a {key}=... cannot be set: that name is taken or no name")
            setattr(self, key, value)

    async def start(self) -> AsyncIterator[Request]:
        """Yield the requests the crawl begins with: by default one for each start URL."""
        for url in self.start_urls:
            yield Request(url)

    def parse(self, response: Response) -> Any:
        """Yield the items and requests of a page. Every spider has its own."""
        raise NotImplementedError(f"{type(self).__name__} has no parse()")

    def on_error(self, request: Request, error: FetchError) -> Any:
        """Learn that *request* was given up, for *error.reason*.

        May yield items and requests, as a callback may. `error.status` is the
        HTTP status where that was the failure.
        """

    async def opened(self) -> None:
        """Prepare: called once in each process, before the first page."""

    async def closed(self, report: "Report") -> None:
        """Clean up: called once in each process, after the last page."""


def arguments_of(spider: Spider) -> Mapping[str, Any]:
    """Return what the spider's constructor was given, whatever it made of it."""
    return spider._arguments  # noqa: SLF001  # it is its class that is here


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
    if isinstance(spider.allowed_hosts, str) and spider.allowed_hosts != "*":
        raise SpiderError(f"{kind}.allowed_hosts is one text: make it a list")
    if not isinstance(spider.settings, Settings):
        raise SpiderError(f"{kind}.settings must be a crawlcw.Settings(...)")
    try:
        Limits(spider.limits)
    except SettingsError as error:
        raise SpiderError(f"{kind}.{error}") from None
    if type(spider).start is Spider.start and not list(spider.start_urls):
        raise SpiderError(f"{kind} has neither start_urls nor start()")
    if not inspect.isasyncgenfunction(type(spider).start):
        raise SpiderError(f"{kind}.start() must be `async def` and yield requests")
    for url in spider.start_urls:
        try:
            urls.locate(url)
        except (FetchError, AttributeError, TypeError) as error:
            raise SpiderError(f"{kind}.start_urls: {url!r} is no URL to fetch: {error}") from None


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
        return frozenset(host.strip().lower() for host in spider.allowed_hosts)
    if spider.start_urls:
        return frozenset(urls.locate(url).host for url in spider.start_urls)
    return None
