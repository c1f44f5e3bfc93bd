"""Spans, as the SDK of OpenTelemetry exports them; without it, nothing of it is imported."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from crawlcw import Settings
from crawlcw.assembly import assemble
from crawlcw.errors import FetchError, Reason
from crawlcw.ledger.sqlite import SqliteLedger
from crawlcw.telemetry.meter import Meter
from crawlcw.testing import Replay
from tests.crawl.test_crawl import HOME, Books, Web, links
from tests.support.gated_site import MISSING, PAGES, gated_site
from tests.support.programs import environment

#: Settings without waits.
_QUICK = {"concurrency": 4, "backoff_base": 0, "host_backoff_base": 0.001, "max_retry": 1}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # The global provider can be set only once in a process.
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == f"crawlcw.{name}"]


async def test_a_page_has_a_trace_of_its_fetch_and_callback_and_a_link_from_its_commit(
    exporter: InMemorySpanExporter, tmp_path: Path
):
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books")
    web = Web({HOME: Replay(body=links("/a?token=s3cret")), f"{HOME}a?token=s3cret": Replay()})
    meter = Meter()

    settings = Settings(trace=True, **_QUICK)
    crawl = assemble(Books(), ledger, web, settings, meter=meter)
    await crawl.run()
    await ledger.close()

    fetches, parses, commits = (named(exporter, each) for each in ("fetch", "parse", "commit"))
    assert [span.attributes["url.full"] for span in fetches] == [HOME, f"{HOME}a?token=***"]
    assert len(parses) == 2
    for fetch, parse in zip(fetches, parses, strict=True):
        assert parse.context.trace_id == fetch.context.trace_id
        assert parse.parent.span_id == fetch.context.span_id
        assert parse.attributes["code.function.name"] == "parse"
        assert fetch.attributes["http.response.status_code"] == 200
    assert len({span.context.trace_id for span in fetches}) == 2
    linked = [link.context.span_id for span in commits for link in span.links]
    assert linked == [span.context.span_id for span in fetches]
    # The metrics have the same steps.
    measures = crawl.measures()
    assert measures is not None
    assert sum(measures.histograms["crawlcw_fetch_duration_seconds"][:-1]) == 2


async def test_a_page_that_fails_says_why_and_nothing_of_what_was_raised(
    exporter: InMemorySpanExporter, tmp_path: Path
):
    ledger = await SqliteLedger.open(tmp_path / "ledger.db", "books")
    refused = FetchError(Reason.TLS, "a secret: hunter2")

    class Broken(Books):
        def parse(self, response):
            raise ValueError("hunter2")

    web = Web({HOME: Replay(body=links("/a")), f"{HOME}a": refused})
    await assemble(Broken(), ledger, web, Settings(trace=True, **_QUICK)).run()
    await ledger.close()

    (parse,) = named(exporter, "parse")
    assert parse.status.status_code is StatusCode.ERROR
    assert parse.attributes["error.type"] == "parse-error"
    assert "hunter2" not in "".join(each.to_json() for each in exporter.get_finished_spans())


_IMPORTED = """
import sys, json, asyncio, tempfile
from crawlcw import Settings, Spider
from crawlcw.assembly import run_spider
from crawlcw.testing import Replay, ReplayDownloader

class One(Spider):
    name = "one"
    start_urls = ["http://a.example/"]
    def parse(self, response):
        yield {"url": response.url}

web = ReplayDownloader({"http://a.example/": Replay()})
report = asyncio.run(run_spider(One(), ledger="sqlite:///:memory:", downloader=web))
assert report.pages == 1
print(json.dumps([each for each in sys.modules if each.split(".")[0] in %r]))
"""


@pytest.mark.thorough
def test_a_crawl_that_nobody_watches_imports_no_extra():
    extras = ("opentelemetry", "prometheus_client", "pydantic")

    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED % (extras,)], capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == []


@pytest.mark.thorough
def test_without_the_extra_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("opentelemetry.py").write_text("raise ModuleNotFoundError(name='opentelemetry')\n")
    Path("one.py").write_text(
        "from crawlcw import Spider\n"
        "class One(Spider):\n    name = 'one'\n    start_urls = ['http://a.example/']\n"
        "    def parse(self, response): pass\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "crawlcw", "run", "one.py", "-s", "trace=true"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr == (
        "crawlcw: trace needs OpenTelemetry: install it with `pip install 'crawlcw[otel]'`\n"
    )


_SITE = """\
import os
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
out = open(f"spans-{os.getpid()}", "a")
exporter = ConsoleSpanExporter(out=out, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""


@pytest.mark.thorough
def test_the_workers_of_a_crawl_have_the_provider_that_their_environment_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Like `opentelemetry-instrument`: by a `sitecustomize` in PYTHONPATH."""
    monkeypatch.chdir(tmp_path)
    Path("site").mkdir()
    Path("site/sitecustomize.py").write_text(_SITE)
    Path("pages.py").write_text(
        "from crawlcw import Spider\n"
        "class Pages(Spider):\n    name = 'pages'\n"
        "    def __init__(self, start_url):\n        super().__init__(start_urls=[start_url])\n"
        "    def parse(self, response):\n        yield from response.follow_all('a')\n"
    )
    known = environment()
    with gated_site() as site:
        site.gate.set()
        done = subprocess.run(
            [sys.executable, "-m", "crawlcw", "run", "pages.py", "--processes", "2",
             "-a", f"start_url={site.url}", "-s", "trace=true"],
            env=known | {"PYTHONPATH": f"{tmp_path}/site:{known['PYTHONPATH']}"},
            capture_output=True, text=True, timeout=90, check=True,
        )  # fmt: skip

    assert "Drained" in done.stdout
    lines = [line for each in tmp_path.glob("spans-*") for line in each.read_text().splitlines()]
    spans = [json.loads(line) for line in lines]
    fetched = [each for each in spans if each["name"] == "crawlcw.fetch"]
    assert len(fetched) == PAGES + MISSING + 2
    assert len({each["context"]["trace_id"] for each in fetched}) == len(fetched)
    assert sum(len(each["links"]) for each in spans) == len(fetched)
