"""The command line of workers: the same as their supervisor's, without secrets."""

import sys

import pytest

from crawlcw.cli.processes.own_command import own_command, own_environment

pytestmark = pytest.mark.quick

SECRETS = [
    "-s",
    "proxies=http://ann:s3cret@gate:1",
    "-sauth=ann:s3cret",
    "-s",
    "PROXIES = http://b",
]


def test_secrets_of_the_command_line_go_to_workers_by_the_environment(
    monkeypatch: pytest.MonkeyPatch,
):
    plain = ["books", "-s", "delay=1s", "-sconcurrency=3", "-a", "auth=x", "-s"]
    arguments = ["run", plain[0], *SECRETS, *plain[1:]]
    monkeypatch.setattr(sys, "argv", ["crawlcw", *arguments])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "crawlcw", *arguments])

    command, environment = own_command("--worker-channel=3"), own_environment()

    expected = [sys.executable, "-m", "crawlcw", "run", "--worker-channel=3", *plain]
    assert command == expected
    assert environment["CRAWLCW_PROXIES"] == "http://b"
    assert environment["CRAWLCW_AUTH"] == "ann:s3cret"
