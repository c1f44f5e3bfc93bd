"""Find the tasks of a key or, in a crawl, of a URL, for the dashboard and for commands."""

from crawlcw.api.request import Request
from crawlcw.ledger.protocol import Ledger, TaskFilter
from crawlcw.model.task import key_id
from crawlcw.model.tracking_parameters import without_tracking


def filters_of(ledger: Ledger, key: str) -> list[TaskFilter]:
    """Return the filters that find the tasks of a key, or of a URL in a crawl.

    Use a filter only if no filter before it finds a task. The first filter finds the task whose id
    follows from the key. The second filter finds tasks whose URL does not identify them, because
    they have a fingerprint, a body, another method than GET, or `dont_filter`. The third filter
    finds the task of a URL from which the crawl has removed tracking parameters. Raises
    `FetchError` for an invalid URL, and `UsageError` for an invalid key.
    """
    if ledger.kind.tracked:
        from crawlcw.tracking import keys  # imported late: commands on a crawl do not need it

        return [TaskFilter(ids=[key_id(keys.key(key))])]
    location, task_id = Request(key).identity()
    _, untracked_id = Request(without_tracking(location.url)).identity()
    return [
        TaskFilter(ids=[task_id]),
        TaskFilter(url=location.url),
        TaskFilter(ids=[untracked_id]),
    ]
