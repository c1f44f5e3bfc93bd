"""The example of a crawl behind a login, run by the command in its docstring."""

from pathlib import Path

from tests.support.examples import output_of


def test_a_crawl_that_was_interrupted_and_logged_out_finishes_every_page(tmp_path: Path):
    assert output_of("login.py", tmp_path) == "20 pages, 2 logins, {} failures\n"
