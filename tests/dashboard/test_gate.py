"""Access control of the dashboard: no other origin, no unknown host name, and the token."""

from pathlib import Path

import aiohttp
import pytest

from crawlcw.errors import UsageError
from tests.support.dashboards import dashboard
from tests.support.ledgers import url_of_one_task

TASK = {"action": "retry", "selection": {}}


@pytest.fixture
async def url(tmp_path: Path) -> str:
    return await url_of_one_task(tmp_path)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "evil.example:8765", "192.0.2.7", "", "[::2]"],
)
async def test_a_stranger_s_name_that_points_here_is_refused(url: str, host: str):
    async with dashboard(url) as page:
        for path in ("/", "/api/start", "/metrics", "/static/page.js"):
            status, answer = await page.get(path, Host=host)

            assert status == 403
            assert "--allow-host" in answer["error"]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:8765", "127.9.9.9"]
)
async def test_loopback_is_asked_by_its_names(url: str, host: str):
    async with dashboard(url) as page:
        assert (await page.get("/api/start", Host=host))[0] == 200


async def test_a_name_that_is_allowed_is_no_stranger(url: str):
    async with dashboard(url, allowed_hosts=("Crawls.Example",)) as page:
        assert (await page.get("/api/start", Host="crawls.example:443"))[0] == 200
        assert (await page.get("/api/start", Host="other.example"))[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
async def test_another_site_s_page_reads_and_changes_nothing(url: str, headers: dict[str, str]):
    async with dashboard(url) as page:
        await page.start()

        for answer in (
            await page.get("/api/start", **headers),
            await page.get("/api/crawls/books/tasks", **headers),
            await page.get("/metrics", **headers),
            await page.post("/api/crawls/books/act", TASK, **headers),
            await page.post("/api/crawls/books/steer", {"order": "stop"}, **headers),
        ):
            assert (answer[0], answer[1]["error"]) == (
                403,
                "this request comes from another site's page",
            )


async def test_what_changes_something_needs_the_page_s_key(url: str):
    async with dashboard(url) as page:
        for key in ({}, {"X-Crawlcw-Key": "guessed"}, {"X-Crawlcw-Key": "ü"}):
            for path, body in (("act", TASK), ("steer", {"order": "stop"})):
                status, answer = await page.post(f"/api/crawls/books/{path}", body, **key)
                assert (status, answer["error"]) == (
                    403,
                    "the page is from an earlier dashboard process: load it again",
                )

        await page.start()
        assert await page.post("/api/crawls/books/act", TASK) == (200, {"changed": 0})


async def test_a_form_of_another_site_changes_nothing(url: str):
    """Any site can send a form across origins, but not as JSON."""
    async with dashboard(url) as page:
        await page.start()
        sent = page.http.post(
            f"{page.address}/api/crawls/books/act", data={"action": "reset"}, headers=page.headers
        )
        async with sent as response:
            assert response.status == 415


async def test_a_dashboard_with_a_token_shows_nothing_without_it(url: str):
    async with dashboard(url, token="s3cret") as page:
        for path in (
            "/api/start",
            "/api/crawls",
            "/api/crawls/books/tasks",
            "/api/crawls/books/items",
            "/api/crawls/books/live",
            "/api/none",
            "/metrics",
        ):
            assert (await page.get(path))[0] == 401
            assert (await page.get(path, Authorization="Bearer wrong"))[0] == 401
        async with page.http.get(page.address) as response:
            text = await response.text()
            assert response.status == 200
            assert "books" not in text

        page.headers["Authorization"] = "Bearer s3cret"
        assert (await page.start())["crawls"] == ["books"]
        # An IP address is safe from DNS rebinding; a name is not.
        assert (await page.get("/api/start", Host="192.0.2.7:8765"))[0] == 200
        assert (await page.get("/api/start", Host="evil.example"))[0] == 403


async def test_beyond_loopback_a_token_is_demanded(url: str):
    from crawlcw.dashboard.crawls import Crawls
    from crawlcw.dashboard.serving import serving

    async def nothing(*_: object) -> list[str]:
        return []

    with pytest.raises(UsageError, match="other machines can reach"):
        async with serving(
            Crawls(open_ledger=nothing, read_names=nothing), host="0.0.0.0", port=0, token=None
        ):
            pass


async def test_the_page_takes_nothing_from_anywhere_else(url: str):
    async with dashboard(url) as page, page.http.get(page.address) as response:
        policy = dict(
            part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; ")
        )

        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"


async def test_no_other_file_can_be_asked_for(url: str):
    async with dashboard(url) as page:
        for path in (
            "/static/../serving.py",
            "/static/%2e%2e/serving.py",
            "/static/",
            "/etc/passwd",
        ):
            asked = page.http.get(aiohttp.client.URL(page.address + path, encoded=True))
            async with asked as response:
                assert response.status == 404
