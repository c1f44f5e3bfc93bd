import json
import os
from collections import Counter
from pathlib import Path

from scrapy import signals
from scrapy.exceptions import NotConfigured

NAMES = (
    "engine_started",
    "engine_stopped",
    "item_dropped",
    "item_error",
    "item_scraped",
    "response_received",
    "spider_closed",
    "spider_error",
    "spider_idle",
    "spider_opened",
)
#: Statistics that projects read, by the beginning of their names.
STATS = ("item_", "retry/", "shop/", "spider_exceptions/")


class Heard:
    """Write the number of each signal, and some statistics, into the file `SHOP_SIGNALS`."""

    def __init__(self, path):
        self.path = path
        self.counts = Counter()

    @classmethod
    def from_crawler(cls, crawler):
        if not (path := os.environ.get("SHOP_SIGNALS")):
            raise NotConfigured
        heard = cls(Path(path))
        heard.stats = crawler.stats
        for name in NAMES:
            crawler.signals.connect(heard.counter(name), getattr(signals, name), weak=False)
        return heard

    def counter(self, name):
        def count():
            self.counts[name] += 1
            if name in {"spider_closed", "engine_stopped"}:
                stats = self.stats.get_stats()
                counts = {name: stats[name] for name in stats if name.startswith(STATS)}
                self.path.write_text(json.dumps(self.counts | counts))

        return count
