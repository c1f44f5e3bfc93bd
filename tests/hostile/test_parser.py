"""Pages that keep the parser busy or crash it: HOSTILE 3.11-3.13 and 8.2."""

import asyncio
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic, thread_time
from typing import Any

import anyio
import pytest

from crawlcw.api import markup
from crawlcw.api.document import Trees
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.api.spider import Spider
from crawlcw.assembly import open_crawl, run_spider
from crawlcw.crawl import parser_child
from crawlcw.crawl import parsing as parsing_module
from crawlcw.crawl.parsing import Parsing
from crawlcw.errors import FetchError, ParseRefusedError, Reason
from crawlcw.testing import Replay, ReplayDownloader
from tests.support.crawl_process import wait_until
from tests.support.programs import children_of

LINK = b"<a href=/next>next</a>"
#: Pages that browsers show; the parser must finish them as well.
FINISHED = {
    "10,000 nested div": b"<div>" * 10_000 + LINK,
    "10,000 nested div in UTF-16": ("\ufeff" + "<div>" * 10_000 + LINK.decode()).encode(
        "utf-16-le"
    ),
    "an inline script": b"<script>" + b"if (a<b) {} " * 12_000 + b"</script>" + LINK,
    "nested div beside end tags that close nothing": b"<div></span>" * 12_000 + LINK,
    "formatting left open": b"<b>" * 20_000 + LINK,
    "formatting in paragraphs": b"<p><b><i><u>" * 5_000 + LINK,
    "options outside of a select": b"<option>" * 100_000 + LINK,
    "10,001 times the same attribute": b"<p " + b"x=1 " * 10_001 + b">" + LINK,
    "100,000 times the same attribute": b"<p " + b"x=1 " * 100_000 + b">" + LINK,
    "svg in templates": b"<svg><template>" * 20_000 + b"</template></svg>" * 20_000 + LINK,
    "svg, math and tables": b"<math><mi><svg><desc><table>" * 3_000 + b"</table>" * 3_000 + LINK,
    "selects in tables": b"<table><select>" * 30_000 + LINK,
    "odd comments": b"<!--><!---><!-- --!><!-- <!-- -->" * 30_000 + LINK,
    "a large page": b"<ul>" + b"<li><a href=/other>a</a>" * 90_000 + LINK,
    "10 MiB of text": b"text " * (2 << 20) + LINK,
    "10 MiB of NULs": b"\0" * (10 << 20) + LINK,
    "10 MiB of text, every second byte a NUL": b"x\0" * (5 << 20) + LINK,
}
#: Pages that the parser cannot finish in time.
REFUSED = {
    "200,000 nested div": b"<div>" * 200_000,
    "100,000 attributes": b"<a " + b" ".join(b"x%d" % n for n in range(100_000)) + b">",
    "100,000 attributes of many <html>": b"".join(b"<html x%d>" % n for n in range(100_000)),
    "a select of 100,000 options": b"<select>" + b"<option>x" * 100_000,
}
#: 20 KB that become a tree of 0.5 GB: each paragraph opens the unclosed tags again.
FORMATTING = (
    b"<div>" + b"".join(b"<b x%d></x>" % n for n in range(700)) + b"</div>" + b"<p>x" * 2200
)
URL = "http://a.example/"
DEEP = b"<span>" * 16_000 + LINK
HANGS = b"<div>" * 200_000


def page(body: bytes, content_type: str = "text/html") -> Response:
    return Response(URL, request=Request(URL), headers={"content-type": content_type}, body=body)


@pytest.fixture
async def parsing() -> AsyncIterator[Parsing]:
    yield Parsing(Settings(), seconds=1.0)
    assert pids() == []


def pids() -> list[int]:
    """Return the parser processes; a server of other tests may be a child as well."""
    found = []
    for pid in children_of(os.getpid()):
        with suppress(OSError):  # the process has ended
            if b"parser_child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@asynccontextmanager
async def no_stall(most: float = 0.5) -> AsyncIterator[None]:
    """Check that no step of the event loop in the block takes *most* seconds or more.

    The check uses CPU time: other programs on the machine cause no stall of the loop.
    """
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            began = thread_time()
            await asyncio.sleep(0.01)
            longest = max(longest, thread_time() - began)

    ticking = asyncio.create_task(tick())
    yield
    ticking.cancel()
    assert longest < most


@pytest.mark.parametrize("name", FINISHED)
async def test_what_is_only_deep_or_odd_is_parsed_as_a_browser_would(name: str, parsing: Parsing):
    response = page(FINISHED[name])

    async with no_stall(), parsing.ready(response) as response:
        last = response.css("a[href]")[-1]
        assert response.trees is not None
        assert (response.trees.refusal, last.attributes["href"]) == (None, "/next")
        assert parsing.memory.used > 0
    assert parsing.memory.used == 0


@pytest.mark.thorough
@pytest.mark.representative(next(iter(REFUSED)))
@pytest.mark.parametrize("name", REFUSED)
async def test_what_does_not_end_is_killed(name: str, parsing: Parsing):
    response = page(REFUSED[name])

    async with no_stall(), parsing.ready(response) as response:
        with pytest.raises(ParseRefusedError, match="the parser did not end within 1 s"):
            response.css("a")
        assert response.text, "the text can still be read"
        assert (pids(), parsing.memory.used) == ([], 0)


async def test_a_tree_that_is_larger_than_memory_allows_is_refused_without_being_made(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level("INFO")
    parsing = Parsing(Settings(memory_budget="32 MiB", max_body="8 MiB"))
    for body in (
        b"<a><a>" * (1 << 18),
        b"<p " + b"x=1 " * (1 << 18) + b">",
        b"<p>" + b"a " * (3 << 20) + b"</p>",  # more than half of the memory for trees
    ):
        response = page(body)

        async with no_stall(), parsing.ready(response) as response:
            with pytest.raises(ParseRefusedError, match=r"than 12,582,912 bytes.*memory_budget"):
                response.css("a")
    assert "a process died" not in caplog.text


@pytest.mark.parametrize(
    "where", ["the page", pytest.param("its head", marks=pytest.mark.thorough)]
)
def test_a_tree_that_grows_out_of_a_page_like_any_other_ends_at_256_mib(where: str):
    # Memory that other tests have left free would not count.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        fresh.submit(anyio.run, parse_what_grows, where).result()


async def parse_what_grows(where: str) -> None:
    parsing = Parsing(Settings())
    head = b"" if where == "the page" else b"<meta http-equiv=refresh content=1>"
    response = page(head + FORMATTING)

    async with no_stall(), parsing.ready(response) as response:
        assert (pids(), response.trees) == ([], Trees())
        if where == "the page":
            with pytest.raises(ParseRefusedError, match="its tree needs more than 256 MiB"):
                response.css("a")
        else:
            assert response.refresh is None


async def test_no_process_is_spent_on_small_pages_or_on_what_is_no_markup(parsing: Parsing):
    deep = b"<div>" * 10_000
    for response in (
        page(b"<p>" * 2_000),
        page(b'{"html": "' + deep + b'"}', "application/json"),
        page(b"text " + deep, "text/plain"),
        page(b'["' + deep + b'"]'),
    ):
        async with parsing.ready(response) as response:
            assert pids() == []
    with pytest.raises(ParseRefusedError, match="more than 2000 tags inside one another"):
        response.css("a")


async def test_an_ordinary_large_page_is_parsed_within_the_memory_that_is_expected(
    parsing: Parsing,
):
    body = b"<div class=line><a name=l1></a><span class=number>1</span>int main();</div>\n" * 15_000
    assert len(body) > markup.LARGE

    async with parsing.ready(page(body)) as response:
        assert len(response.css("a")) == 15_000
        assert parsing.memory.used < 2 * markup.tree_size(body), "only a part of the memory budget"


async def test_of_pages_side_by_side_two_are_parsed_at_once(parsing: Parsing):
    most = 0
    done: list[Response] = []

    async def parse() -> None:
        async with parsing.ready(page(DEEP)) as response:
            done.append(response)

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(parse)
        while len(done) < 6:
            most = max(most, len(pids()))
            await asyncio.sleep(0.005)

    assert 1 <= most <= 2


async def killed_while(parsing: Parsing, response: Response, *, times: int) -> Response:
    """Kill the process that parses a page, *times* times; return the response for a callback."""
    killed: set[int] = set()

    async def kill() -> None:
        while len(killed) < times:
            for pid in pids():
                # It has used some CPU since its start, so it is at work.
                if pid not in killed and _ticks(pid) >= 20:
                    killed.add(pid)
                    os.kill(pid, signal.SIGSEGV)
            await asyncio.sleep(0.01)

    async with anyio.create_task_group() as group:
        group.start_soon(kill)
        async with parsing.ready(response) as given:
            group.cancel_scope.cancel()
    assert len(killed) == times
    return given


def _ticks(pid: int) -> int:
    """Return the CPU time of a process in hundredths of a second."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11])


@pytest.mark.thorough
async def test_a_process_that_crashes_costs_a_page_one_more_try():
    parsing = Parsing(Settings(), seconds=5.0)
    response = page(b"<div>" * 25_000 + LINK)

    response = await killed_while(parsing, response, times=1)

    assert [link.attributes["href"] for link in response.css("a")] == ["/next"]


@pytest.mark.thorough
async def test_a_page_of_which_two_processes_crash_is_refused():
    parsing = Parsing(Settings(), seconds=30.0)
    response = page(HANGS)

    response = await killed_while(parsing, response, times=2)

    with pytest.raises(ParseRefusedError, match=r"2 processes died while parsing it: sig"):
        response.css("a")


@pytest.mark.parametrize("deaths", [1, 2])
async def test_a_page_has_a_second_process_if_its_first_one_dies(
    deaths: int, parsing: Parsing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "python"
    program.write_text(
        f"""#!/bin/sh
        echo >> {tmp_path}/begun
        ulimit -c 0
        [ $(wc -l < {tmp_path}/begun) -gt {deaths} ] || kill -SEGV $$
        exec {sys.executable} "$@"
        """
    )
    program.chmod(0o700)
    monkeypatch.setattr(parsing_module.sys, "executable", str(program))

    async with parsing.ready(page(DEEP)) as response:
        if deaths == 1:
            assert response.css("a[href]")
        else:
            with pytest.raises(ParseRefusedError, match=r"2 processes died .*: signal 11"):
                response.css("a")


async def test_cancellation_ends_the_process_that_is_at_work(parsing: Parsing):
    with anyio.move_on_after(0.5):
        async with parsing.ready(page(HANGS)):
            pytest.fail("it cannot be ready")

    assert (pids(), parsing.memory.used) == ([], 0)


async def test_a_process_whose_page_is_cancelled_as_it_starts_leaves_no_pipe_open(
    parsing: Parsing, monkeypatch: pytest.MonkeyPatch
):
    begun: list[subprocess.Popen[bytes]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen(*arguments, **options))
        scope.cancel()
        return begun[0]

    monkeypatch.setattr(parsing_module, "Popen", start)
    with anyio.CancelScope() as scope:
        async with parsing.ready(page(HANGS)):
            pytest.fail("it cannot be ready")

    (child,) = begun
    assert child.returncode == -signal.SIGKILL
    assert [pipe is None or pipe.closed for pipe in (child.stdin, child.stdout)] == [True, True]


@pytest.mark.parametrize("program", ["/nowhere/python", "cat"], ids=["none", "another"])
async def test_where_no_process_can_be_started_odd_pages_are_refused_by_their_look(
    program: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
):
    # `cat` complains of Python's options, and ends with 1.
    monkeypatch.setattr(parsing_module.sys, "executable", program)
    deep, large = page(DEEP), page(FINISHED["10 MiB of text"])
    parsing = Parsing(Settings())
    async with parsing.ready(deep) as deep:
        with pytest.raises(ParseRefusedError, match="more than 2000 tags"):
            deep.css("a")
    async with parsing.ready(large) as large:
        assert large.css("a")

    assert caplog.text.count("cannot start a process for unusual pages") == 1
    assert capfd.readouterr().err == ""


async def test_an_error_page_that_no_method_looks_at_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    class Plain(Spider):
        name = "plain"
        start_urls = [URL]

    monkeypatch.setattr(parsing_module.sys, "executable", "/nowhere/python")
    html = {"content-type": "text/html"}
    downloader = ReplayDownloader({URL: Replay(status=404, headers=html, body=DEEP)})

    await run_spider(Plain(), ledger=f"sqlite:///{tmp_path}/ledger.db", downloader=downloader)

    assert "cannot start a process for unusual pages" not in caplog.text


async def test_a_module_in_the_working_folder_is_not_that_of_the_parser(
    parsing: Parsing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A file that was downloaded there would be run."""
    (tmp_path / "selectolax.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(parsing_module.sys, "path", ["", *sys.path])

    async with parsing.ready(page(DEEP)) as response:
        assert response.css("a[href]")


async def test_a_process_that_gets_no_cpu_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(parsing_module, "_TIMEOUT_FACTOR", 0.01)
    parsing = Parsing(Settings(), seconds=60.0)

    async with asyncio.timeout(20), parsing.ready(page(HANGS)) as response:
        with pytest.raises(ParseRefusedError, match="the parser did not end within 60 s"):
            response.css("a")


async def test_a_callback_that_is_cancelled_gives_the_memory_of_its_tree_back(parsing: Parsing):
    with anyio.CancelScope() as scope:
        async with parsing.ready(page(b"<p>")):
            assert parsing.memory.used > 0
            scope.cancel()
            await anyio.sleep_forever()

    assert parsing.memory.used == 0


CHILD = f"""
import sys
sys.path.insert(0, {str(Path(parser_child.__file__).parent)!r})
import parser_child
"""
#: As on a system without a memory limit of its own for processes, and without prctl(2).
ELSEWHERE = (
    CHILD
    + """
parser_child._FIGURES = parser_child.Path("/nowhere")
parser_child.ctypes.CDLL = lambda _: None
"""
)
#: Under a limit that the process cannot raise.
LIMITED = (
    CHILD
    + """
import resource
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
"""
)


@pytest.mark.parametrize(
    ("system", "body", "seconds", "ended"),
    [
        (LIMITED, FORMATTING, 5.0, parser_child.TOO_LARGE),
        (CHILD, HANGS[:200_000], 0.1, -parser_child.TIME_IS_OVER),
    ],
    ids=["room", "time"],
)
def test_a_page_gets_no_more_than_its_room_and_its_time(
    system: str, body: bytes, seconds: float, ended: int
):
    code = f"{system}parser_child.main('lexbor', {8 << 20}, {seconds})"

    child = subprocess.run([sys.executable, "-c", code], input=body, capture_output=True)

    assert child.returncode == ended, child.stderr


@pytest.mark.parametrize(
    ("system", "kind", "room"),
    [
        (ELSEWHERE, "lexbor", 1000),
        (LIMITED, "lexbor", 1 << 40),
        (f"{CHILD}sys.modules['selectolax'] = None\n", "html", 1 << 30),
    ],
    ids=["tells less", "allows less", "has parsel alone"],
)
def test_a_page_is_parsed_where_the_system_tells_less_or_allows_less(
    system: str, kind: str, room: int
):
    code = f"{system}parser_child.main('{kind}', {room}, 5.0)"

    child = subprocess.run([sys.executable, "-c", code], input=LINK, capture_output=True)

    assert child.returncode == 0, child.stderr
    assert (int(child.stdout) == room) == (system == ELSEWHERE)


PARENT = """
import asyncio
from crawlcw.api.request import Request
from crawlcw.api.response import Response
from crawlcw.api.settings import Settings
from crawlcw.crawl.parsing import Parsing

async def parse(parsing, body):
    url = "http://a.example/"
    async with parsing.ready(Response(url, request=Request(url), body=body)):
        pass

async def main():
    parsing = Parsing(Settings(), seconds=60.0)
    await parse(parsing, b"<div>" * 400_000)

asyncio.run(main())
"""


def test_a_parent_that_is_killed_leaves_no_process_behind():
    with subprocess.Popen([sys.executable, "-c", PARENT]) as parent:
        wait_until(lambda: any(_ticks(pid) >= 30 for pid in children_of(parent.pid)))
        (child,) = children_of(parent.pid)
        nice = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (parent.pid, child)]
        group, core = os.getpgid(child), resource.prlimit(child, resource.RLIMIT_CORE)

        parent.kill()

    wait_until(lambda: _ended(child), within=5)
    assert nice[0] < nice[1]
    assert group == child, "out of reach of Ctrl-C"
    assert core == (0, 0)


def _ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


class Site(Spider):
    name = "site"
    start_urls = [f"{URL}{n}" for n in ("deep", "refused", "deep-again", "ok", "json")]

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, FetchError] = {}

    def parse(self, response: Response) -> Iterator[object]:
        if response.url.endswith("json"):
            assert "tree" not in vars(response)
            return
        yield {"links": len(response.css("a"))}
        yield from response.follow_all("a[href]")

    def on_error(self, request: Request, error: FetchError) -> None:
        self.refused[request.url] = error


def web(refused: bytes) -> ReplayDownloader:
    json = Replay(headers={"content-type": "application/json"}, body=b'"' + b"<b>" * 500_000 + b'"')
    return ReplayDownloader(
        {
            f"{URL}deep": DEEP,
            f"{URL}deep-again": DEEP,
            f"{URL}refused": refused,
            f"{URL}ok": LINK,
            f"{URL}next": b"<p>",
            f"{URL}json": json,
        }
    )


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (
            b"<a><a>" * 300_000,
            "the page and its tree are larger than 50,331,648 bytes",
        ),
        pytest.param(HANGS, "the parser did not end within 5 s", marks=pytest.mark.thorough),
    ],
)
async def test_in_a_crawl_only_what_cannot_be_parsed_is_given_up(
    refused: bytes, why: str, tmp_path: Path
):
    spider, url = Site(), f"sqlite:///{tmp_path / 'ledger.db'}"
    settings = Settings(obey_robots=False, memory_budget="128 MiB")
    async with no_stall():
        report = await run_spider(spider, ledger=url, downloader=web(refused), settings=settings)

    assert (report.pages, report.failures) == (5, {Reason.PARSE_KILLED: 1})
    assert report.stalls == 0
    assert spider.refused.keys() == {f"{URL}refused"}
    assert why in spider.refused[f"{URL}refused"].message


@pytest.mark.thorough
async def test_a_crawl_that_is_told_to_stop_does_not_wait_for_the_parser(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    settings = Settings(obey_robots=False, grace="100ms")
    downloader = web(HANGS)
    async with open_crawl(Site(), ledger=url, downloader=downloader, settings=settings) as crawl:

        async def stop() -> None:
            while f"{URL}refused" not in downloader.requested_urls:
                await asyncio.sleep(0.01)
            crawl.stop_now()

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            began = monotonic()
            report = await crawl.run()

    assert monotonic() - began < 4
    assert report.finish_reason == "stopped-at-once"


async def test_a_tree_of_parsels_is_tried_elsewhere_once_a_callback_has_asked_for_one(
    parsing: Parsing,
):
    """HOSTILE 3.11: time and memory of the second parser are bounded like the first one's."""
    large = b"<ul>" + b"<li><a href=/other>a</a>" * 50_000 + LINK
    first = page(large)
    async with parsing.ready(first) as first:
        assert "selector" not in vars(first), "the tree is made on demand"
        assert first.xpath("(//a)[last()]/@href").get() == "/next"

    second, odd = page(large), page(DEEP)
    async with parsing.ready(second) as second:
        assert second.trees is not None
        assert second.trees.selector is not None, "made outside the event loop"
        assert second.xpath("count(//a)").get() == "50001.0"
    async with parsing.ready(odd) as odd:
        assert odd.css("a[href]"), "the first parser finishes the page"
        with pytest.raises(ParseRefusedError, match="more than 2000 tags inside one another"):
            odd.xpath("//a")
    assert parsing.memory.used == 0


async def test_once_a_callback_has_asked_for_a_tree_of_parsels_each_page_counts_twice(
    parsing: Parsing,
):
    used = []
    for _ in range(2):
        async with parsing.ready(page(LINK)) as response:
            used.append(parsing.memory.used)
            assert response.xpath("//a")

    assert used[1] == 2 * used[0] > 0


async def test_a_tree_of_parsels_that_takes_more_than_expected_is_made_with_more_memory(
    parsing: Parsing, monkeypatch: pytest.MonkeyPatch
):
    async with parsing.ready(page(LINK)) as response:
        assert response.xpath("//a")
    # Enough for the tree of lexbor, 6 MB, and too little for that of parsel beside it, 3 MB.
    monkeypatch.setattr(markup, "tree_size", lambda body: 2_000_000)

    async with parsing.ready(page(b"a " * (1 << 19) + b"<p>x</p>" * 8_000)) as response:
        assert response.xpath("count(//p)").get() == "8000.0"


async def test_a_tree_of_parsels_for_which_memory_is_too_short_leaves_the_other_alone():
    settings = Settings(memory_budget="128 MiB")
    parsing = Parsing(settings)
    small = page(b"<p>1")
    async with parsing.ready(small) as small:
        assert small.xpath("//p")
    large = page(b"<i>x</i>" * 110_000)

    async with parsing.ready(large) as large:
        assert len(large.css("i")) == 110_000
        with pytest.raises(ParseRefusedError, match="its tree for XPath needs more"):
            large.xpath("//i")
