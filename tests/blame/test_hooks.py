"""A hook or downloader of a spider that kills its process: only its page loses attempts."""

from pathlib import Path

import pytest

from crawlcw.model.task import Status
from tests.blame.code_site import started
from tests.support import docs
from tests.support.crawl_process import Store

pytestmark = pytest.mark.thorough
KILLS, RAISES = "/7.html", "/3.html"
PAGES = 12
MAX_LOST = 5


@pytest.mark.parametrize("where", ["before", "after", "downloader"])
def test_a_page_whose_hook_kills_its_process_is_given_up(
    where: str, ledger_url: str, tmp_path: Path, processes
):
    store, folder = Store(ledger_url), tmp_path / "site"
    folder.mkdir()
    leaves = [f"{number}.html" for number in range(PAGES)]
    links = "".join(f'<a href="{leaf}">l</a>' for leaf in ("gone.html", *leaves))
    (folder / "index.html").write_text(links)
    for leaf in leaves:
        (folder / leaf).write_text(f"<title>{leaf}</title>")
    with docs.served(folder) as site:
        crawl = processes.enter_context(
            started(
                tmp_path,
                f"{docs.REPOSITORY}/tests/blame/hook_spider.py",
                *("--ledger", store.url, f"-astart_url={site.start}"),
                *(f"-akills={KILLS}", f"-awhere={where}", f"-araises={RAISES}"),
            )
        )
        code, report = crawl.end()

    ignored = {row.path: row for row in store.rows() if row.status == Status.IGNORED}
    assert {path: row.reason for path, row in ignored.items()} == {
        KILLS: "crashed-worker",
        RAISES: "parse-error",
        "/gone.html": "http-status",
    }, crawl.log
    assert ignored["/gone.html"].items == 1, "on_error got the answer"
    assert (code, report["finish_reason"]) == (0, "drained")
    assert ignored[KILLS].lost == MAX_LOST
    finished = [row for row in store.rows() if row.status == Status.FINISHED]
    assert len(finished) == PAGES + 1 - 2
