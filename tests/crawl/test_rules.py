"""Rules of a spider in whole crawls: the links that they follow, and the pages they start from."""

import re
from typing import Any

import pytest

from crawlcw import Request, Response, Rule, Spider, run_spider, url_list
from crawlcw.api.spider import check
from crawlcw.errors import FetchError, SpiderError
from crawlcw.ledger_opening import open_ledger
from crawlcw.testing import Replay, ReplayDownloader

HOME = "http://a.example/"


def links(*addresses: str) -> str:
    return "".join(f"<a href={address}>x</a>" for address in addresses)


SITE: dict[str, str | Replay] = {
    HOME: links("/list/1", "/item/1", "/about", "/item/1.pdf"),
    f"{HOME}list/1": links("/list/2", "/item/2"),
    f"{HOME}list/2": Replay(status=302, headers={"Location": "/list/3"}),
    f"{HOME}list/3": links("/item/3", "/last"),
    f"{HOME}item/1": links("/item/4"),
    f"{HOME}item/2": links("/item/5", "/list/1"),
    f"{HOME}item/3": links("/list/9"),
    f"{HOME}last": links("/item/6"),
    **{f"{HOME}item/{n}": "<h1>leaf</h1>" for n in (4, 5, 6)},
}


class Shop(Spider):
    """Lists link to items; an item's links are followed only with `follow`."""

    name = "shop"
    start_urls = [HOME]
    rules = [
        Rule(allow=r"/list/"),
        Rule(allow=r"/item/1$", callback="parse_item", follow=True),
        Rule(allow=r"/item/", callback="parse_item", context={"n": 1}),
        Rule(allow=r"/last", callback="parse_last"),
    ]

    def parse_item(self, response: Response) -> Any:
        yield {"item": response.url.removeprefix(HOME), "n": response.context.get("n")}

    async def parse_last(self, response: Response) -> Any:
        yield {"item": "last"}


EXPECTED = {("item/1", None), ("item/2", 1), ("item/3", 1), ("item/4", 1), ("last", None)}


async def items(url: str) -> set[tuple[str, Any]]:
    ledger = await open_ledger(url, "shop")
    found = {(row.item["item"], row.item.get("n")) async for row in ledger.queries.items()}
    await ledger.close()
    return found


async def test_rules_hold_for_start_urls_and_for_pages_that_are_to_be_followed(ledger_url: str):
    downloader = ReplayDownloader(SITE)

    report = await run_spider(Shop(), ledger=ledger_url, downloader=downloader)

    # item/5 and item/6 are linked from a page whose links are not followed.
    assert await items(ledger_url) == EXPECTED
    assert report.failures == {}, "no other requests"


async def test_rules_hold_beside_a_parse_of_the_spiders_own(tmp_path: Any):
    class Own(Shop):
        rules = [Rule(allow="/list/1"), Rule(allow="/item/", callback="parse_item")]

        def parse(self, response: Response) -> Any:
            yield {"item": response.url.removeprefix(HOME)}
            yield Request(f"{HOME}last", self.parse_item)

    url = f"sqlite:///{tmp_path}/own.db"

    await run_spider(Own(), ledger=url, downloader=ReplayDownloader(SITE))

    expected = {"", "list/1", "item/1", "item/2", "last"}
    assert {item for item, _ in await items(url)} == expected, "rules do not apply to `last`"


async def test_rules_hold_neither_for_lists_of_urls_nor_for_failures(tmp_path: Any):
    class Listed(Shop):
        @url_list
        def parse(self, response: Response) -> Any:
            yield Request(f"{HOME}list/1", self.parse_item)
            yield Request(f"{HOME}gone", self.parse_item)

        def on_error(self, request: Request, error: FetchError) -> Any:
            yield {"item": "gone"}

    url = f"sqlite:///{tmp_path}/listed.db"
    site = SITE | {f"{HOME}gone": Replay(status=404)}

    await run_spider(Listed(), ledger=url, downloader=ReplayDownloader(site))

    assert {item for item, _ in await items(url)} == {"list/1", "gone"}


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ([Rule(callback="parse_nothing")], "there is no callback 'parse_nothing'"),
        ("/item/", "must be a list of crawlcw.Rule"),
        ([r"/item/"], "must be a list of crawlcw.Rule"),
        (Rule(), "must be a list of crawlcw.Rule"),
    ],
)
def test_rules_are_checked_before_the_crawl(rules: Any, told: str):
    with pytest.raises(SpiderError, match=told):
        check(type("Odd", (Shop,), {"rules": rules})())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"restrict_xpaths": "//main"},
            "Rule(restrict_xpaths=...) means nothing here: write restrict= with a CSS selector",
        ),
        ({"process_links": "f"}, "Rule(process_links=...) means nothing here: write a callback"),
        ({"cb_kwargs": {"a": 1}}, "Rule(cb_kwargs=...) means nothing here: write context="),
        ({"meta": {"a": 1}}, "Rule(meta=...) means nothing here: write context="),
        ({"priorty": 1}, "Rule has no argument priorty=: did you mean priority=?"),
        ({"priority": 1000}, "Rule(priority=1000) must be a whole number, -100 to 100"),
        ({"css": re.compile("a")}, "Rule(Pattern(...)) takes a CSS selector for links"),
    ],
)
def test_a_mistake_in_a_rule_names_the_rule(arguments: Any, told: str):
    with pytest.raises(SpiderError) as caught:
        Rule(**arguments)

    assert str(caught.value).startswith(told)
    assert "Request" not in str(caught.value)
