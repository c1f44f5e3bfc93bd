"""The examples of tracked tasks, each by the one command that its first lines name."""

import re
import subprocess
import sys
from pathlib import Path

from tests.docs import REPOSITORY


def output_of(example: str, folder: Path) -> str:
    ended = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / example)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    # A stranger's folder is left as it was.
    assert list(folder.iterdir()) == []
    return ended.stdout


def test_every_order_has_one_accepted_charge_though_workers_are_killed(tmp_path: Path):
    said = output_of("orders.py", tmp_path)

    found = re.search(r"(\d+) workers killed; 600 orders: \{<Status\.FINISHED: 50>: 600\}\n", said)
    assert found, said
    assert int(found[1]) > 0
    charges = re.search(r"(\d+) charges asked for, 600 accepted", said)
    assert charges, said
    assert int(charges[1]) >= 600


def test_corrupt_files_are_ignored_and_the_others_are_measured(tmp_path: Path):
    said = output_of("files.py", tmp_path)

    assert said.startswith("drained: 1000 done, 0 failed\n")
    assert "957.data: unwanted, its checksum does not match\n" in said
    assert "980 measured, 20 corrupt\n" in said
    assert said.endswith("0.data: {'mean': 49.5}\n")


def test_videos_pass_the_stages_of_the_pipeline(tmp_path: Path):
    first, *videos = output_of("pipeline.py", tmp_path).splitlines()

    whole = "inspect:advance transcode:advance publish:finish"
    again = "inspect:advance transcode:fail transcode:advance publish:finish"
    assert first == "drained: 15 stages done, 2 failed"
    assert videos == [
        f"/film/video-1/1 {whole}",
        f"/film/video-2/1 {whole}",
        f"/film/video-3/1 {whole}",
        f"/film/video-4/1 {again}",
        f"/series/video-5/2 {again}",
    ]
