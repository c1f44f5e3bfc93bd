"""Bans: answers that are refused to a proxy or a session, and their cause in the end.

A page that is banned goes to another proxy or session. One that was banned by so many is
refused to everybody: that is its own failure, and no proxy's.
"""

from collections import OrderedDict
from collections.abc import Callable

from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.fetch.proxies import ProxyPool
from crawlcw.model import urls
from crawlcw.model.proxies import Proxy
from crawlcw.model.task import Task

#: A page that was banned through so many proxies, or as so many sessions, pays for it.
_MOST = 4
_KEPT = 10_000


class Bans:
    """The bans of one process."""

    def __init__(
        self, settings: Settings, proxies: ProxyPool, *, banned_when: Callable[[Response], bool]
    ) -> None:
        """*banned_when* is what the spider says of a response."""
        self._statuses = frozenset(settings.proxy_ban_statuses)
        self._banned_when = banned_when
        self._proxies = proxies
        self._counts: OrderedDict[bytes, int] = OrderedDict()

    def is_ban(self, response: Response) -> bool:
        """Return whether an answer is a ban; raises `FetchError` where the spider's code raises."""
        return response.status in self._statuses or self._banned_when(response)

    def note(self, task: Task, proxy: Proxy | None) -> bool:
        """Note that a page was banned, through a *proxy* of no session; return whose that is.

        True where it is the page's own failure; else another proxy, or session, is to ask.
        """
        count = self._counts.pop(task.id, 0) + 1
        rotates = proxy is not None and proxy in self._proxies.proxies
        most = min(_MOST, len(set(self._proxies.proxies))) if rotates else _MOST
        if proxy is not None and not rotates:
            return True  # the request or the environment has named it: there is no other to ask
        host = urls.parse(task.url).raw_host or ""
        if count >= most:
            # Every proxy is refused it, so it says nothing of them.
            self._proxies.unban(host)
            return True
        self._counts[task.id] = count
        if len(self._counts) > _KEPT:
            self._counts.popitem(last=False)
        if proxy is not None:
            self._proxies.ban(proxy, host)
        return False
