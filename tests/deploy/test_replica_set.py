"""The replica set of examples/deploy, started on this machine: options, certificates, role, URL."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymongo
import pytest

from tests.deploy.test_files import DEPLOY, compose
from tests.support import needed
from tests.support.gated_site import PAGES, gated_site
from tests.support.mongod import free_port
from tests.support.mongod_server import found
from tests.support.programs import environment, run_to_end

pytestmark = pytest.mark.thorough

MEMBERS = ("mongo1", "mongo2", "mongo3")
ROOT, CRAWLER, READER = "r00t-w0rd", "cr4wl-w0rd", "r34d-w0rd"
ENOUGH = 120.0
SPIDER = """\
from crawlcw import Settings, Spider

class Books(Spider):
    name = "books"
    settings = Settings(concurrency=4, read_timeout="90s", timeout="90s")

    def __init__(self, start_url):
        super().__init__(start_urls=[start_url])

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all("a")
"""


class ReplicaSet:
    """Three servers with the options of compose.yaml, on ports of this machine."""

    def __init__(self, folder: Path) -> None:
        needed.program("openssl")
        self.certificates = folder / "certificates"
        subprocess.run(
            [DEPLOY / "make-certificates.sh", self.certificates, *MEMBERS], check=True, timeout=60
        )
        self.ports = {name: free_port() for name in MEMBERS}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        binary = found()
        assert binary.binary is not None
        binary.binary.chmod(0o755)
        for name in MEMBERS:
            data = folder / name
            data.mkdir()
            self._processes[name] = subprocess.Popen(
                [str(binary.binary), *self._options(name), "--dbpath", str(data),
                 "--logpath", str(data / "log"), "--nounixsocket", "--oplogSize", "64"],
                env=os.environ | binary.environment,
            )  # fmt: skip

    def _options(self, name: str) -> list[str]:
        changed = {
            "--bind_ip_all": f"--port={self.ports[name]}",
            "--wiredTigerCacheSizeGB=1": "--wiredTigerCacheSizeGB=0.25",
            "--tlsCAFile=/certificates/ca.pem": f"--tlsCAFile={self.ca}",
            "--tlsCertificateKeyFile=/certificates/server.pem": (
                f"--tlsCertificateKeyFile={self.certificates / name}.pem"
            ),
        }
        return [changed.get(each, each) for each in compose()["services"][name]["command"]]

    @property
    def ca(self) -> Path:
        return self.certificates / "ca.pem"

    def here(self, text: str) -> str:
        """Return *text* with this machine's addresses and files."""
        for name, port in self.ports.items():
            text = text.replace(f"{name}:27017", f"127.0.0.1:{port}")
            text = text.replace(name, f"127.0.0.1:{port}")
        return text.replace("/certificates/ca.pem", str(self.ca))

    def url(self) -> str:
        """Return the crawler's URL from compose.yaml."""
        said: str = compose()["services"]["crawler"]["environment"]["CRAWLCW_LEDGER"]
        return self.here(said.replace("${CRAWLER_PASSWORD}", CRAWLER))

    def client(self, name: str, **options: Any) -> "pymongo.MongoClient[dict[str, Any]]":
        port = self.ports[name]
        return pymongo.MongoClient(
            "127.0.0.1", port, directConnection=True, tls=True, tlsCAFile=str(self.ca),
            serverSelectionTimeoutMS=30_000, **options,
        )  # fmt: skip

    def set_up(self) -> None:
        """Run the steps of setup-ledger.js, with the same documents."""
        with self.client("mongo1") as client:
            members = json.loads(self.here((DEPLOY / "replica-set.json").read_text()))
            client.admin.command("replSetInitiate", members)
            until(lambda: client.admin.command("hello")["isWritablePrimary"])
            client.admin.command("createUser", "root", pwd=ROOT, roles=["root"])
        with self.client("mongo1", username="root", password=ROOT) as client:
            client.crawl.command(json.loads((DEPLOY / "mongodb-role.json").read_text()))
            client.crawl.command("createUser", "crawler", pwd=CRAWLER, roles=["crawler"])
            client.crawl.command("createUser", "reader", pwd=READER, roles=["read"])
            until(lambda: states(client) == ["PRIMARY", "SECONDARY", "SECONDARY"])

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def close(self) -> None:
        for name in MEMBERS:
            self.kill(name)


def states(client: "pymongo.MongoClient[dict[str, Any]]") -> list[str]:
    status = client.admin.command("replSetGetStatus")
    return sorted(each["stateStr"] for each in status["members"])


def until(condition: Any) -> None:
    deadline = time.monotonic() + ENOUGH
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaSet]:
    with ExitStack() as ended:
        made = ReplicaSet(tmp_path_factory.mktemp("set"))
        ended.callback(made.close)
        made.set_up()
        yield made


def crawlcw(*arguments: str, url: str) -> "subprocess.CompletedProcess[str]":
    return run_to_end(
        [sys.executable, "-m", "crawlcw", *arguments],
        variables={"CRAWLCW_LEDGER": url},
        within=ENOUGH,
    )


def test_a_crawl_of_the_least_privileges_survives_the_primary(
    ledger: ReplicaSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: ExitStack
):
    monkeypatch.chdir(tmp_path)
    Path("spiders").mkdir()
    Path("spiders/books.py").write_text(SPIDER)
    url = ledger.url()
    assert crawlcw("doctor", "books", "--ready", url=url).stdout == "ready\n"
    site = processes.enter_context(gated_site())
    # The command of compose.yaml.
    command: list[str] = compose()["services"]["crawler"]["command"]
    port = free_port()
    command = [str(port) if each == "9464" else each for each in command]
    command = ["127.0.0.1" if each == "0.0.0.0" else each for each in command]
    with Path("log").open("wb") as log:
        crawl = subprocess.Popen(
            [sys.executable, "-m", "crawlcw", *command, "-a", f"start_url={site.url}"],
            env=environment() | {"CRAWLCW_LEDGER": url}, stdout=log, stderr=log,
        )  # fmt: skip
    processes.callback(crawl.wait)
    processes.callback(crawl.kill)

    def finished() -> int:
        told = crawlcw("stats", "books", "--json", url=url)
        return 0 if told.returncode else json.loads(told.stdout)["counts"]["finished"]

    until(lambda: finished() == PAGES + 1)
    ledger.kill("mongo1")
    site.gate.set()

    assert crawl.wait(timeout=ENOUGH) == 0, Path("log").read_text()
    assert finished() == PAGES + 2
    assert crawlcw("doctor", "books", url=url).returncode == 0
    reader = url.replace(f"crawler:{CRAWLER}", f"reader:{READER}")
    refused = crawlcw("doctor", "books", "--ready", url=reader)
    assert refused.returncode == 78
    assert "createCollection, createIndex, insert, remove, update" in refused.stderr
    assert CRAWLER not in Path("log").read_text()


def test_nobody_without_tls_or_password_is_served(ledger: ReplicaSet):
    plain = ledger.url().replace("tls=true", "tls=false").partition("&tlsCAFile")[0]
    wrong = ledger.url().replace(CRAWLER, "wrong")

    for url in (plain, wrong):
        done = crawlcw("doctor", "books", "--ready", url=url)
        assert done.returncode in (69, 78), done.stderr
        assert done.stdout == ""
