"""Pages that redirect to one another: followed in place, and by tasks of their own."""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import invoke
from tests.support.plain_site import PlainHandler, PlainSite
from tests.support.programs import run_to_end

pytestmark = pytest.mark.thorough


class Site(PlainSite):
    """Serves `/` with links, redirects and pages; a host is any name of loopback."""

    def __init__(self, moved: Mapping[str, str], *, linked: Iterable[str] | None = None) -> None:
        """Serve redirects: *moved* has the target of each URL; `A` and `B` are two hosts.

        The home page links to *linked*; None stands for all URLs.
        """
        site, linked = self, list(moved if linked is None else linked)

        class Handler(PlainHandler):
            protocol_version = "HTTP/1.1"

            def get(self) -> None:
                place = site.short(f"http://{self.headers['Host']}{self.path}")
                links = "".join(f'<a href="{site.long(each)}">x</a>' for each in linked)
                if place in moved:
                    self.reply(301, "", {"Location": site.long(moved[place])})
                else:
                    self.reply(200, links if place[1:] == "/" else "")

        super().__init__(Handler)
        here = self.url.removesuffix("/")
        self.hosts = {"A": here, "B": here.replace("127.0.0.1", "localhost")}

    def long(self, place: str) -> str:
        return self.hosts[place[0]] + place[1:]

    def short(self, url: str) -> str:
        name = next(name for name, host in self.hosts.items() if url.startswith(host))
        return name + url.removeprefix(self.hosts[name])


class Crawled:
    """The ledger and report after `crawlcw run` on a site."""

    def __init__(self, site: Site, folder: Path, ledger: str, *options: str) -> None:
        self._site, self._ledger = site, ("--ledger", ledger)
        (folder / "pages.py").write_text(f"""
from crawlcw import Spider

class Pages(Spider):
    name = "pages"
    start_urls = {[site.hosts["A"] + "/", site.hosts["B"] + "/"]!r}

    def parse(self, response):
        yield {{"url": response.url}}
        yield from response.follow_all("a")
""")
        command = [sys.executable, "-m", "crawlcw", "run", "pages.py", *options, *self._ledger]
        done = run_to_end(command, folder=folder)
        assert done.returncode in (0, 3), done.stderr
        self.report = done.stdout

    def look(self, *arguments: str) -> str:
        done = invoke(*arguments, *self._ledger)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def show(self, place: str, *options: str) -> str:
        return self.look("show", "pages", self._site.long(place), *options)

    def outcomes(self) -> dict[str, tuple[str, str | None]]:
        tasks = map(json.loads, self.look("tasks", "pages", "--json", "--limit", "0").splitlines())
        return {
            self._site.short(task["url"]): (task["status"], task.get("reason")) for task in tasks
        }

    def stats(self) -> Any:
        return json.loads(self.look("stats", "pages", "--json"))


REDIRECT, LOOP = ("finished", "redirect"), ("ignored", "redirect-loop")
PAGE = ("finished", None)


@pytest.mark.representative("sqlite-two-hosts")
@pytest.mark.parametrize(
    ("loop", "options"),
    [
        (["A/1", "A/2"], ()),
        (["A/1", "A/2"], ("-s", "delay=10ms")),
        (["A/1", "B/2"], ()),
        (["A/1", "B/2", "A/3", "B/4"], ("--processes", "3")),
        (["A/1", "A/2", "A/3"], ("--processes", "3", "-s", "per_host_concurrency=0")),
    ],
    ids=["in-place", "own-tasks", "two-hosts", "four", "shared"],
)
def test_pages_that_redirect_to_one_another_are_a_loop(
    loop: list[str], options: tuple[str, ...], ledger_url: str, tmp_path: Path
):
    moved = dict(zip(loop, [*loop[1:], loop[0]], strict=True)) | {"A/into": loop[0]}
    with Site(moved, linked=["A/into"]) as site:
        crawled = Crawled(site, tmp_path, ledger_url, *options)

    outcomes = crawled.outcomes()
    found = [outcomes[place] for place in loop]
    # The page whose redirect closes the loop.
    assert found == [*[REDIRECT] * (len(loop) - 1), LOOP], outcomes
    assert (outcomes["A/"], outcomes["B/"]) == (PAGE, PAGE)
    stats = crawled.stats()
    assert stats["counts"]["finished"] == 2
    assert stats["total"] == 2 + stats["counts"]["ignored"]
    # `crawlcw show` names the reason for each page of the loop.
    for place in loop:
        assert "redirect-loop" in crawled.show(place)


def test_redirects_are_counted_apart_and_shown_with_what_became_of_their_pages(
    ledger_url: str, tmp_path: Path
):
    moved = {f"A/old/{n}": f"A/page/{n}" for n in range(30)}
    moved |= {"A/far": "B/near", "A/farther": "A/far", "A/out": "A/refused"}
    with Site(moved) as site:
        crawled = Crawled(site, tmp_path, ledger_url, "-s", "delay=1ms")

    stats = crawled.stats()
    assert (stats["counts"]["finished"], stats["redirects"]) == (2 + 30 + 2, 33)
    assert stats["total"] == 34
    for shown in (crawled.report, crawled.look("stats", "pages")):
        rows = dict(line.split() for line in shown.splitlines() if len(line.split()) == 2)
        assert (rows["finished"], rows["redirects"], rows["total"]) == ("34", "33", "34")
    assert crawled.outcomes()["A/old/7"] == REDIRECT
    assert f"leads to {site.long('A/page/7')}: finished" in crawled.show("A/old/7")
    ahead = json.loads(crawled.show("A/farther", "--json"))["leads_to"]
    assert [site.short(each["url"]) for each in ahead] == ["A/far", "B/near"]
    assert [each["status"] for each in ahead] == ["finished", "finished"]
    assert "clean: no violation" in crawled.look("doctor", "pages")
