"""The tutorial, word for word: all of its commands and files, in a new folder, offline."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import pages
from tests.support.examples import QUICK

SERVE = "crawlcw demo --serve"


def port_of_the_shop() -> int:
    """Return the tutorial's port, or a free one if another program uses it."""
    with socket.socket() as probe:
        taken = probe.connect_ex(("127.0.0.1", 8000)) == 0
    with socket.create_server(("127.0.0.1", 0 if taken else 8000), reuse_port=True) as server:
        return server.getsockname()[1]


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Serve the bookshop, as the tutorial does in a second terminal."""
    port = port_of_the_shop()
    command = [sys.executable, "-m", *SERVE.split(), "--port", str(port)]
    shop = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert shop.stdout is not None
    try:
        said = pages.block(pages.guide("tutorial"), "", "is open at")
        assert shop.stdout.readline() == said.replace("8000", str(port))
        yield port
    finally:
        shop.send_signal(signal.SIGINT)
        assert shop.wait(timeout=30) == 0
        shop.stdout.close()


def run(script: str, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={"HOME": str(folder), "PATH": path, **QUICK},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_shell_answers_as_the_tutorial_shows(port: int, tmp_path: Path) -> None:
    tutorial = pages.guide("tutorial").replace("8000", str(port))
    shown = [block for block in pages.blocks(tutorial, "") if block.startswith(">>> ")]
    lines = "".join(shown).splitlines()
    typed = [line.removeprefix(">>> ") for line in lines if line.startswith(">>> ")]

    shell = run(pages.block(tutorial, "sh", "crawlcw shell"), tmp_path, "\n".join(typed) + "\n")

    answers = [line for line in lines if not line.startswith(">>> ")]
    # Each answer stands behind the prompt: the typed lines have no echo.
    assert shell.stdout.replace(">>> ", "").splitlines() == answers
    assert len(answers) == 7


def test_the_tutorial_works_from_its_first_to_its_last_step(port: int, tmp_path: Path) -> None:
    tutorial = pages.guide("tutorial").replace("8000", str(port))
    install, *blocks = pages.blocks(tutorial, "sh")
    assert install == "pip install crawlcw\n"
    blocks.remove(f"{SERVE}\n")
    (tmp_path / "spiders").mkdir()
    for name, block in pages.modules(tutorial).items():
        (tmp_path / f"{name}.py").write_text(block)

    finished = run("".join(blocks).replace("pip install pytest\n", ""), tmp_path)

    assert finished.returncode == 0, finished.stderr
    assert "books: no mistake found" in finished.stdout
    assert f"GET http://127.0.0.1:{port}/category/fog-and-weather/" in finished.stdout
    assert len((tmp_path / "books.csv").read_text().splitlines()) == 1 + 240
    assert "price" in (tmp_path / "books.csv").read_text().splitlines()[0]
    assert "3 tasks will be tried again by `crawlcw run books`" in finished.stdout
    assert "2 passed" in finished.stdout
