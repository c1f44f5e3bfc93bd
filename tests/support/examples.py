"""The programs of `examples`, each run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.docs import REPOSITORY

#: Eight pages of the demo's shop fail at first, and commands would wait for up to 10 s for them.
QUICK = {"CRAWLCW_BACKOFF_BASE": "100ms"}


def output_of(example: str, folder: Path, *arguments: str) -> str:
    """Run *example* with *arguments* to its end in the empty *folder*; return its output.

    It has to end well, and to leave nothing in the folder.
    """
    path = REPOSITORY / "examples" / example
    interpreter = "sh" if path.suffix == ".sh" else sys.executable
    # `python3` in the script must be this one, with this crawlcw.
    search = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ended = subprocess.run(
        [interpreter, str(path), *arguments],
        cwd=folder,
        env=os.environ | QUICK | {"PATH": search, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(folder.iterdir()) == []
    return ended.stdout
