import asyncio
import os
import sqlite3

import scrapy
from itemadapter import ItemAdapter
from scrapy.exceptions import DropItem
from scrapy.pipelines.files import FilesPipeline
from twisted.internet import defer, task, threads


class Measuring:
    """Work in a thread and in the reactor, as pipelines with a database do."""

    @defer.inlineCallbacks
    def process_item(self, item, spider):
        from twisted.internet import reactor

        measured = yield threads.deferToThread(len, ItemAdapter(item).asdict())
        yield task.deferLater(reactor, 0.001, lambda: None)
        if "measured" in getattr(item, "fields", ()):
            item["measured"] = measured
        return item


class Dropping:
    def process_item(self, item, spider):
        if ItemAdapter(item).get("drop"):
            raise DropItem("unwanted")
        return item


class Checking:
    """Download a page for an item, in a coroutine."""

    def __init__(self, crawler):
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def process_item(self, item, _spider):
        await asyncio.sleep(0)
        if url := ItemAdapter(item).get("check"):
            response = await self.crawler.engine.download_async(scrapy.Request(url))
            item["checked"] = response.status
        return item


class Storing:
    """Store items in a database of its own, and drop those that it has already."""

    def __init__(self, path):
        self.path = path

    @classmethod
    def from_settings(cls, settings):
        return cls(os.environ["SHOP_DATABASE"])

    def open_spider(self, spider):
        self.database = sqlite3.connect(self.path)
        self.database.execute("CREATE TABLE IF NOT EXISTS books (title PRIMARY KEY, url)")

    def close_spider(self, spider):
        self.database.close()

    def process_item(self, item, spider):
        row = item["title"], item["url"]
        try:
            with self.database:
                self.database.execute("INSERT INTO books VALUES (?, ?)", row)
        except sqlite3.IntegrityError:
            raise DropItem(f"{item['title']} is stored already") from None
        return item


class Files(FilesPipeline):
    """Name files by their URLs."""

    def file_path(self, request, response=None, info=None, *, item=None):
        return request.url.partition("//")[2].partition("/")[2].replace("/", "-")

    def item_completed(self, results, item, info):
        item["files"] = sorted(result["path"] for is_good, result in results if is_good)
        item["missing"] = sum(not is_good for is_good, _ in results)
        return item


class Refusing:
    def process_item(self, item, spider):
        if isinstance(item, dict) and item.get("refuse"):
            raise ValueError("refused")
        return item
