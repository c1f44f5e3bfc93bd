"""The spider that ends its processes, with short waits before a task or a process is tried again.

The waits are 15 s for a page that ends seven processes.
"""

from datetime import timedelta

from crawlcw.cli.processes import supervisor
from crawlcw.model import transitions
from tests.blame.poison_spider import PoisonSpider

transitions._FIRST_REST = supervisor._FIRST_WAIT = timedelta(milliseconds=50)


class HurriedPoisonSpider(PoisonSpider):
    """The same; a crawl takes a class of its own file."""
