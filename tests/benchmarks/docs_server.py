"""Debian's manuals behind nginx, whose log of requests gives the times of every crawler.

Without nginx, `tests.support.static_site` serves them, at a higher cost of CPU.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from tests.support.docs import REPOSITORY
from tests.support.mongod import free_port

#: Debian's packages python3.11-doc and postgresql-doc-15.
DOCS = [Path("/usr/share/doc/python3.11/html"), Path("/usr/share/doc/postgresql-doc-15/html")]
#: Debian's package libstdc++-12-doc: 3,846 small pages; links lead to 3,753.
SMALL = [Path("/usr/share/doc/libstdc++-12-doc/libstdc++")]
_NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
_OPENER = build_opener(ProxyHandler({}))
_FIRST = 100
_CONFIGURATION = """
worker_processes 1; daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
    types {{ text/html html; text/plain txt; text/css css; text/javascript js; }}
    default_type application/octet-stream;
    sendfile on; keepalive_requests 1000000; open_file_cache max=10000;
    client_body_temp_path {folder}/temporary; proxy_temp_path {folder}/temporary;
    fastcgi_temp_path {folder}/temporary; uwsgi_temp_path {folder}/temporary;
    scgi_temp_path {folder}/temporary;
    log_format seen escape=json '["$request_uri",$status,$msec,$request_time,$connection]';
    access_log {folder}/seen.jsonl seen buffer=64k;
    server {{ listen 127.0.0.1:{port} {tls}; root {root}; }}
}}
"""


@dataclass(slots=True)
class Seen:
    """Counts and times of one crawl in the site's log; times in seconds of the system's clock."""

    requests: int = 0
    pages: int = 0  #: different pages of HTML that were answered
    connections: int = 0  #: over TLS, each with a handshake
    first: float = 0.0  #: time of the first request
    last: float = 0.0  #: time of the last answer
    hundredth: float = 0.0  #: time of the hundredth answer


@dataclass(slots=True)
class Site:
    """A running site; `seen` is filled when it has ended."""

    port: int
    scheme: str
    seen: Seen = field(default_factory=Seen)


def kind() -> str:
    """Return the name and version of the server on this machine."""
    if _NGINX is None:
        return "tests.support.static_site (no nginx: apt-get install nginx-light)"
    said = subprocess.run([_NGINX, "-v"], check=True, capture_output=True, text=True).stderr
    return said.strip().removeprefix("nginx version: ")


def lay_out(folder: Path, docs: list[Path], *, copies: int) -> Path:
    """Return the root of a site with *copies* copies of *docs*; its first page links to all."""
    root = folder / "root"
    root.mkdir()
    links = []
    for number, source in enumerate(docs * copies):
        if not (source / "index.html").is_file():
            raise SystemExit(f"{source} has no index.html: install Debian's package of it")
        # Real folders, since the server in Python does not follow links to folders.
        shutil.copytree(source.resolve(), root / str(number), copy_function=os.symlink)
        links.append(f'<a href="/{number}/index.html">{number}</a>')
    page = "<!doctype html><title>Manuals</title>" + "".join(links)
    (root / "index.html").write_text(page, encoding="utf-8")
    return root


@contextmanager
def serving(folder: Path, root: Path, *, certificate: Path | None = None) -> Iterator[Site]:
    """Serve *root* by a fresh server, over TLS with *certificate*."""
    if _NGINX is None:
        if certificate is not None:
            raise SystemExit("TLS needs nginx: apt-get install nginx-light")
        with _by_python(root) as site:
            yield site
        return
    folder.mkdir()
    (folder / "temporary").mkdir()
    site = Site(free_port(), "https" if certificate else "http")
    tls = f"ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate}"
    text = _CONFIGURATION.format(
        folder=folder, port=site.port, root=root, tls=tls if certificate else ""
    )
    (folder / "nginx.conf").write_text("user root;" * (Path.home() == Path("/root")) + text)
    server = subprocess.Popen([_NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        _await(folder / "pid", server)
        yield site
    finally:
        server.send_signal(3)  # SIGQUIT: nginx writes its log before it ends
        server.wait(timeout=30)
    site.seen = _read(folder / "seen.jsonl", root)


def _await(file: Path, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while not file.exists() or not file.read_text():
        if server.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("nginx did not start; its words are above")
        time.sleep(0.01)


def _read(log: Path, root: Path) -> Seen:
    """Return the counts and times in nginx's log."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    if not lines:
        return Seen()
    pages = {line[0].partition("?")[0] for line in lines if line[1] == 200}
    return Seen(
        requests=len(lines),
        pages=sum(page.endswith((".html", "/")) for page in pages),
        connections=len({line[4] for line in lines}),
        first=min(line[2] - line[3] for line in lines),
        last=max(line[2] for line in lines),
        hundredth=sorted(line[2] for line in lines)[:_FIRST][-1],
    )


@contextmanager
def _by_python(root: Path) -> Iterator[Site]:
    command = [sys.executable, "-m", "tests.support.static_site", str(root)]
    server = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        site = Site(int(server.stdout.readline()), "http")
        yield site
        with _OPENER.open(f"http://127.0.0.1:{site.port}/__seen__") as answer:
            site.seen = Seen(**json.load(answer))
    finally:
        server.kill()
        server.communicate()
