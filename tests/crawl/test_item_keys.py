"""Items with a key: each key is recorded once, by any process, over runs and kills."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from crawlcw import Response, Settings, Spider, SpiderError, open_ledger, run_spider
from crawlcw.testing import ReplayDownloader

pytestmark = pytest.mark.quick

HOME = "https://shop.example/"
#: Ten lists of five products each; a product is on two lists, with the price of its list.
PAGES = {f"{HOME}{n}": " ".join(str(5 * n // 2 + i) for i in range(5)) for n in range(10)}


class Shop(Spider):
    name = "shop"
    start_urls = list(PAGES)
    item_key: Any = "sku"
    settings = Settings(obey_robots=False, delay="0s", auto_throttle=False)

    def parse(self, response: Response) -> Any:
        page = response.url.removeprefix(HOME)
        for sku in response.text.split():
            yield {"sku": sku, "page": page}
        yield {"sku": None, "page": page}


SKUS = {sku for text in PAGES.values() for sku in text.split()}


async def items(url: str) -> list[Any]:
    ledger = await open_ledger(url, "shop", create=False)
    try:
        return [dict(row.item) async for row in ledger.queries.items()]
    finally:
        await ledger.close()


async def crawl(url: str, spider: Spider, pages: Any = None) -> Any:
    return await run_spider(spider, ledger=url, downloader=ReplayDownloader(pages or PAGES))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/shop.db"


async def test_each_key_is_recorded_once_and_the_others_are_counted(url: str):
    report = await crawl(url, Shop())

    recorded = Counter(item["sku"] for item in await items(url))
    assert recorded == dict.fromkeys(SKUS, 1) | {None: 10}
    assert report.items_dropped == {"duplicate": 50 - len(SKUS)}
    assert report.items == len(SKUS) + 10


async def test_a_method_makes_the_key_of_an_item(url: str):
    class Method(Shop):
        def item_key(self, item: Any) -> Any:
            return (item["page"], int(item["sku"]) % 2) if item["sku"] else None

    report = await crawl(url, Method())

    assert report.items == 10 + 10 * 2


async def test_a_key_of_an_earlier_run_counts(url: str):
    await crawl(url, Shop(start_urls=[f"{HOME}0"]))
    before = await items(url)

    await crawl(url, Shop())

    after = await items(url)
    assert [item for item in after if item in before] == before
    assert Counter(item["sku"] for item in after) == dict.fromkeys(SKUS, 1) | {None: 10}


async def test_the_last_item_of_a_key_may_win(url: str):
    class Last(Shop):
        item_key_wins = "last"

    await crawl(url, Last(start_urls=[f"{HOME}0"]))
    report = await crawl(url, Last(start_urls=[f"{HOME}0", f"{HOME}1"]))

    recorded = await items(url)
    assert Counter(item["sku"] for item in recorded)["2"] == 1
    assert {item["page"] for item in recorded if item["sku"] in PAGES[f"{HOME}1"].split()} == {"1"}
    assert report.items_dropped == {}


async def test_within_a_page_the_first_or_the_last_item_of_a_key_is_kept(url: str, tmp_path: Path):
    class First(Shop):
        start_urls = [HOME]

        def parse(self, response: Response) -> Any:
            yield from ({"sku": "a", "n": n} for n in range(3))

    class Last(First):
        item_key_wins = "last"

    other = f"sqlite:///{tmp_path}/last.db"
    for ledger, spider in ((url, First()), (other, Last())):
        report = await crawl(ledger, spider, {HOME: "x"})
        assert report.items_dropped == {"duplicate": 2}

    assert await items(url) == [{"sku": "a", "n": 0}]
    assert await items(other) == [{"sku": "a", "n": 2}]


async def test_a_page_that_no_longer_has_an_item_gives_its_key_up(url: str):
    spider = Shop(start_urls=[f"{HOME}0"])
    await crawl(url, spider)
    ledger = await open_ledger(url, "shop")
    try:
        assert await ledger.admin.reopen(
            __import__("crawlcw.ledger.protocol", fromlist=["TaskFilter"]).TaskFilter(),
            stage=None,
            deletes_results=False,
        )
    finally:
        await ledger.close()

    await crawl(url, spider, {f"{HOME}0": "7"})
    await crawl(url, Shop(start_urls=[f"{HOME}0", f"{HOME}1"]))

    skus = Counter(item["sku"] for item in await items(url))
    assert skus == {None: 2, "7": 1} | dict.fromkeys(PAGES[f"{HOME}1"].split(), 1)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("item_key", 3, "item_key = 3: write the name of a field, or a method"),
        ("item_key_wins", "newest", 'item_key_wins = \'newest\': write "first" or "last"'),
    ],
)
async def test_another_value_is_refused(url: str, name: str, value: Any, said: str):
    wrong = type("Wrong", (Shop,), {name: value})

    with pytest.raises(SpiderError) as raised:
        await crawl(url, wrong())

    assert said in str(raised.value)
