"""`crawlcw run` through proxies, one dead and one banned, and its messages."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import exit_site
from tests.support.exit_site import ExitSite
from tests.support.proxy_servers import ProxyServer, proxies

SPIDER = """\
from crawlcw import Settings, Spider

class Exits(Spider):
    name = "exits"
    start_urls = ["{start}"]
    settings = Settings(
        host_backoff_base="50ms", host_backoff_max="50ms", backoff_base="0s", delay="{delay}",
        proxy_ban_statuses=[403],
    )

    def parse(self, response):
        yield {{"page": response.url, "through": str(response.proxy)}}
        yield from response.follow_all("a")
"""
PASSWORD = "pr0xy-pass"


@pytest.fixture
def three() -> Iterator[list[ProxyServer]]:
    servers = [ProxyServer("http", f"127.0.0.{n}", login=f"ann:{PASSWORD}") for n in (2, 3, 4)]
    with proxies(*servers):
        yield servers


@pytest.fixture
def site() -> Iterator[ExitSite]:
    with exit_site.served(31) as running:
        yield running


def command(folder: Path, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "crawlcw", *arguments],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_the_command_says_why_it_ends_where_the_password_is_wrong(
    tmp_path: Path, site: ExitSite, three: list[ProxyServer]
):
    (tmp_path / "exits.py").write_text(SPIDER.format(start=site.start, delay="0s"))
    wrong = three[0].url.replace(PASSWORD, "wr0ng")

    asked = command(tmp_path, "run", "exits.py", CRAWLCW_PROXIES=wrong)
    said, _ = asked.communicate(timeout=60)

    assert asked.returncode == 3
    last = said.strip().splitlines()[-1]
    shown = f"the proxy http://***@127.0.0.2:{three[0].port} rejects its password (HTTP 407)"
    assert f"the proxy does not work: {shown}" in last
    assert "The same command resumes the crawl." in last
    assert "wr0ng" not in said


@pytest.mark.thorough
def test_a_setting_that_is_no_proxy_is_refused_without_its_password(tmp_path: Path):
    (tmp_path / "exits.py").write_text(SPIDER.format(start="http://127.0.0.1/", delay="0s"))

    asked = command(
        tmp_path, "run", "exits.py", CRAWLCW_PROXIES=f"http://a:1,ftp://ann:{PASSWORD}@gate"
    )
    said, _ = asked.communicate(timeout=60)

    assert asked.returncode == 2
    assert "setting proxies: proxy 2 of 2: its scheme is not one of http, https" in said
    assert PASSWORD not in said
    assert "Traceback" not in said
