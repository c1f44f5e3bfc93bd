"""The tutorial, word for word: every command and every file of it, in a new folder, offline."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import pages

TUTORIAL = pages.guide("tutorial")
SERVE = "crawlcw demo --serve"


@pytest.fixture
def folder(tmp_path: Path):
    """A folder beside which the bookshop is open, as the tutorial has it in a second terminal."""
    with socket.socket() as taken:
        if taken.connect_ex(("127.0.0.1", 8000)) == 0:
            pytest.skip("another program has port 8000, which the tutorial names")
    shop = subprocess.Popen(
        [sys.executable, "-m", *SERVE.split()], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert shop.stdout is not None
    try:
        assert shop.stdout.readline() == pages.block(TUTORIAL, "", "is open at").lstrip()
        yield tmp_path
    finally:
        shop.send_signal(signal.SIGINT)
        assert shop.wait(timeout=30) == 0
        shop.stdout.close()


def test_the_tutorial_works_from_its_first_to_its_last_step(folder: Path) -> None:
    install, *blocks = pages.blocks(TUTORIAL, "sh")
    assert install == "pip install -e .\n"
    blocks.remove(f"{SERVE}\n")
    (folder / "spiders").mkdir()
    (folder / "spiders" / "books.py").write_text(pages.block(TUTORIAL, "python", "class Books"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    finished = subprocess.run(
        ["bash", "-euc", "".join(blocks)],
        cwd=folder,
        env={"HOME": str(folder), "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert finished.returncode == 0, finished.stderr
    assert "books: no mistake found" in finished.stdout
    assert "GET http://127.0.0.1:8000/category/fog-and-weather/" in finished.stdout
    assert len((folder / "books.csv").read_text().splitlines()) == 1 + 240
    assert "3 tasks will be tried again by `crawlcw run books`" in finished.stdout
