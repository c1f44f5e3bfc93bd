"""Rules of a spider in whole crawls: the links that they follow, and the pages they start from."""

import re
from typing import Any

import pytest

from crawlcw import Request, Response, Rule, Settings, Spider, run_spider, url_list
from crawlcw.api.spider import check
from crawlcw.errors import FetchError, SpiderError
from crawlcw.ledger.protocol import TaskFilter
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
        ([Rule(process_links="keep")], "there is no method 'keep'"),
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
            "Rule(restrict_xpaths=...) means nothing here: write restrict_xpath=",
        ),
        ({"process_links": 1}, "Rule(process_links=1) takes a function or the name of a method"),
        ({"allow_domains": "a b"}, "Rule: allow_domains='a b' must be hosts such as shop.example"),
        ({"restrict_text": "("}, "Rule: restrict_text='(' is not a regular expression"),
        ({"restrict": "a", "restrict_xpath": "//a"}, "Rule takes restrict= or restrict_xpath=, "),
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


PLACES = """
<main><p><a href=/in/1>First</a> <a name=x>no link</a><a href=/in/2>Second <b>part</b></a>
</main>
<a href=http://shop.b.example/3>third part</a> <a href=http://c.example/4>fourth</a>
<a href=/5><img src=/i.png></a> <a href=/5>fifth part</a>
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"restrict_xpath": "//main/p"}, ["/in/1", "/in/2"]),
        ({"restrict_xpath": "//a[b]"}, ["/in/2"]),
        ({"restrict_xpath": "//main", "restrict_text": "part"}, ["/in/2"]),
        ({"restrict_text": [r"part$"]}, ["/in/2", "http://shop.b.example/3", "/5"]),
        ({"allow_domains": ["b.example"]}, ["http://shop.b.example/3"]),
        ({"deny_domains": ["a.example", "b.example"]}, ["http://c.example/4"]),
        ({"allow_domains": "a.example", "deny": "/in/"}, ["/5"]),
    ],
)
def test_a_rule_selects_links_by_place_text_and_domain(
    arguments: dict[str, Any], expected: list[str]
):
    response = Response(HOME, request=Request(HOME), body=PLACES.encode())

    urls = [request.url.replace(HOME, "/") for request in Rule(**arguments).requests(response)]

    assert urls == expected
    assert not response.dropped.counts


def newest(requests: list[Request]) -> list[Request]:
    return requests[-1:]


class Processed(Shop):
    def reversed(self, requests: list[Request]) -> Any:
        for request in reversed(requests):
            request.priority = 5
            yield request
        yield Request(f"{HOME}list/added")

    def parse(self, response: Response) -> Any:
        yield {"item": response.url.removeprefix(HOME)}

    parse_list = parse


@pytest.mark.parametrize(
    ("limit", "lists", "item"),
    [
        (100, ["list/1", "list/2", "list/3", "list/4", "list/added"], ["item/4"]),
        (3, ["list/1", "list/2", "list/3"], []),
    ],
)
async def test_process_links_changes_the_requests_of_a_rule(
    limit: int, lists: list[str], item: list[str], tmp_path: Any
):
    spider, url = Processed(), f"sqlite:///{tmp_path / 'ledger.db'}"
    spider.rules = [
        Rule(allow="/list/", process_links="reversed", callback="parse_list"),
        Rule(allow="/item/", process_links=newest, callback="parse_list"),
    ]
    numbers = range(1, 5)
    pages = [f"/list/{n}" for n in numbers] + [f"/item/{n}" for n in numbers]
    site: dict[str, str | Replay] = {HOME: links(*pages)}
    site |= {f"{HOME}{page.removeprefix('/')}": "x" for page in [*pages, "/list/added"]}

    report = await run_spider(
        spider,
        ledger=url,
        downloader=ReplayDownloader(site),
        settings=Settings(max_links_per_page=limit),
    )

    ledger = await open_ledger(url, "shop")
    tasks = [record.task async for record in ledger.queries.walk(TaskFilter())]
    await ledger.close()
    # The limit of links holds for the arguments of process_links, and for its result.
    followed = {task.url.removeprefix(HOME): task.priority for task in tasks}
    assert followed.keys() == {"", *lists, *item}
    assert followed["list/1"] == 5
    assert bool(report.links_dropped) is (limit == 3)


async def test_a_process_links_that_returns_nothing_fails_its_page(tmp_path: Any):
    errors: list[str] = []

    class Wrong(Processed):
        rules = [Rule(process_links=lambda requests: None)]  # type: ignore[arg-type,return-value]

        def on_error(self, request: Request, error: FetchError) -> None:
            errors.append(error.message)

    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    await run_spider(Wrong(), ledger=url, downloader=ReplayDownloader(SITE))

    assert errors == [
        "SpiderError: <lambda>() of a Rule returned NoneType: return a list of requests"
    ]
