"""Debian's Prometheus, which scrapes the targets of a test."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import needed
from tests.support.mongod import free_port

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ENOUGH = 60.0


class Prometheus:
    """Scrapes every half second, and answers queries."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> dict[str, float]:
        """Return the values of an instant query, by their labels without job and instance."""
        asked = urllib.parse.urlencode({"query": expression})
        with _OPENER.open(f"{self.url}/api/v1/query?{asked}", timeout=10) as answer:
            found = json.load(answer)
        return {
            ",".join(
                value
                for name, value in sorted(each["metric"].items())
                if name not in ("__name__", "instance", "job")
            ): float(each["value"][1])
            for each in found["data"]["result"]
        }


def get(url: str, **headers: str) -> tuple[int, str]:
    """Return the status and the text of an answer."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with _OPENER.open(urllib.request.Request(url, headers=named), timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@contextmanager
def scraping(folder: Path, *targets: str) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes *targets* (host:port), with its data in *folder*."""
    config = folder / "prometheus.yml"
    named = json.dumps(list(targets))
    config.write_text(
        "global: {scrape_interval: 500ms, scrape_timeout: 500ms}\n"
        f"scrape_configs: [{{job_name: crawlcw, static_configs: [{{targets: {named}}}]}}]\n"
    )
    port = free_port()
    command = [needed.program("prometheus"), f"--config.file={config}"]
    command += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _ENOUGH
        while not _is_ready(port):
            assert server.poll() is None, (folder / "prometheus.log").read_text()[-1000:]
            assert time.monotonic() < deadline, "Prometheus is not ready"
            time.sleep(0.1)
        yield Prometheus(port)
    finally:
        server.kill()
        server.wait()


def _is_ready(port: int) -> bool:
    try:
        with _OPENER.open(f"http://127.0.0.1:{port}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
