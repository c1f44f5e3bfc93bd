"""The examples of tracked tasks, each run by the command in its docstring."""

import json
import re
from pathlib import Path

import pytest

from tests.support.examples import output_of


@pytest.mark.thorough
def test_every_order_has_one_accepted_charge_though_workers_are_killed(tmp_path: Path):
    said = output_of("orders.py", tmp_path)

    found = re.search(r"(\d+) workers killed; 600 orders: \{<Status\.FINISHED: 50>: 600\}\n", said)
    assert found, said
    assert int(found[1]) > 0
    charges = re.search(r"(\d+) charges asked for, 600 accepted", said)
    assert charges, said
    assert int(charges[1]) >= 600


@pytest.mark.thorough
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


def test_a_worker_in_shell_does_its_share(tmp_path: Path):
    created, *worked, stats = output_of("worker.sh", tmp_path).splitlines()

    assert json.loads(created)["new"] == 3
    assert worked == ["a haiku: 11 words", "nothing: 0 words", 'a "question": 3 words']
    counts = json.loads(stats)["counts"]
    assert (counts["finished"], counts["ignored"]) == (2, 1)
