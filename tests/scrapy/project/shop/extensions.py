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


class Heard:
    """Count the signals of a crawl, and write the counts into the file `SHOP_SIGNALS`."""

    def __init__(self, path):
        self.path = path
        self.counts = Counter()

    @classmethod
    def from_crawler(cls, crawler):
        if not (path := os.environ.get("SHOP_SIGNALS")):
            raise NotConfigured
        heard = cls(Path(path))
        for name in NAMES:
            crawler.signals.connect(heard.counter(name), getattr(signals, name), weak=False)
        return heard

    def counter(self, name):
        def count():
            self.counts[name] += 1
            if name in {"spider_closed", "engine_stopped"}:
                self.path.write_text(json.dumps(self.counts))

        return count
