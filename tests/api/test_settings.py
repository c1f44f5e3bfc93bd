"""Settings: the values of each kind, and the precedence of their sources."""

import dataclasses
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import crawlcw
from crawlcw.api.settings import (
    Settings,
    described,
    layered,
    project_settings,
    unknown_variables,
)
from crawlcw.errors import SettingsError
from crawlcw.model.health import Policy
from crawlcw.model.retry import RetryPolicy

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("name", "given", "held"),
    [
        ("concurrency", 5, 5),
        ("concurrency", "5", 5),
        ("max_pages", 10, 10),
        ("max_pages", None, None),
        ("max_pages", "none", None),
        ("max_pages", "", None),
        ("delay", timedelta(seconds=2), timedelta(seconds=2)),
        ("delay", 2, timedelta(seconds=2)),
        ("delay", 0.5, timedelta(milliseconds=500)),
        ("delay", "1m30s", timedelta(seconds=90)),
        ("obey_robots", False, False),
        ("obey_robots", "Off", False),
        ("obey_robots", "ON", True),
        ("obey_robots", "1", True),
        ("max_body", 1000, 1000),
        ("max_body", "64 KiB", 65536),
        ("max_body", "1.5MB", 1_500_000),
        ("max_failures", None, None),
        ("max_failures", 0, 0),
        ("max_failures", "100", 100),
        ("max_failures", 0.05, 0.05),
        ("max_failures", "5%", 0.05),
        ("max_failures", "0%", 0.0),
        ("claim", "batch", "batch"),
        ("user_agent", "my-bot/1.0", "my-bot/1.0"),
        ("allow_private", ["10.0.0.5", " intranet:8080 "], ("10.0.0.5", "intranet:8080")),
        ("allow_private", "10.0.0.5, intranet:8080,", ("10.0.0.5", "intranet:8080")),
        ("allow_private", "", ()),
    ],
)
def test_a_setting_is_read_from_a_value_and_from_text(name: str, given: Any, held: object):
    assert getattr(Settings(**{name: given}), name) == held


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("concurrency", 0, "0 is not a whole number of at least 1"),
        ("concurrency", "8.5", "'8.5' is not a whole number"),
        ("concurrency", True, "True is not a whole number"),
        ("concurrency", "9" * 5000, "is not a whole number"),
        ("per_host_concurrency", -1, "-1 is not a whole number of at least 0"),
        ("max_pages", 0, "0 is neither a whole number of at least 1 nor none"),
        ("delay", "soon", "'soon' is not a duration: write seconds, or a text such as 30s"),
        ("timeout", 0, "0 is too short: write at least 0.001 s"),
        ("lease", "100ms", "'100ms' is too short: write at least 1 s"),
        ("obey_robots", "maybe", "'maybe' is neither true nor false"),
        (
            "max_body",
            "big",
            "'big' is not a size: write a number of bytes, or a text such as 10 MiB",
        ),
        ("max_body", -5, "-5 is not a size"),
        ("max_body", "9" * 400, "is not a size"),
        ("max_failures", -1, "-1 is neither a count, nor a share such as 5%, nor none"),
        ("max_failures", "101%", "'101%' is neither"),
        ("max_failures", "nan", "'nan' is neither"),
        ("max_failures", [5], "[5] is neither"),
        ("claim", "some", "'some' is not one of each, batch"),
        ("user_agent", "a\r\nX-Evil: 1", "is not one line of visible text"),
        ("allow_private", [7], "[7] is not a list of names"),
    ],
)
def test_a_value_that_makes_no_sense_is_one_clear_error(name: str, given: Any, message: str):
    with pytest.raises(SettingsError) as caught:
        Settings(**{name: given})

    assert str(caught.value).startswith(f"setting {name}: ")
    assert message in str(caught.value)


def test_settings_cannot_be_changed():
    settings = Settings()

    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.concurrency = 5  # type: ignore[misc]  # refused at run time too


def test_the_longest_backoff_is_not_shorter_than_the_first():
    with pytest.raises(SettingsError, match="backoff_max is less than backoff_base"):
        Settings(backoff_base="2h")
    with pytest.raises(SettingsError, match="host_backoff_max is less than host_backoff_base"):
        Settings(host_backoff_base="2h")
    assert Settings(host_backoff_base="2h", host_backoff_max="2h").host_backoff_base == timedelta(
        hours=2
    )


def test_the_memory_budget_holds_at_least_one_body():
    with pytest.raises(SettingsError, match="memory_budget is less than 4 times max_body"):
        Settings(max_body="65 MiB")
    with pytest.raises(SettingsError, match="or decrease max_body"):
        Settings(memory_budget="39 MiB")
    assert Settings(max_body="100 MiB", memory_budget="400 MiB").max_body == 100 << 20


def test_the_defaults_are_those_of_the_readme():
    settings = Settings()

    assert (settings.concurrency, settings.per_host_concurrency) == (100, 8)
    assert (settings.obey_robots, settings.cookies, settings.insecure) == (True, False, False)
    assert (settings.timeout, settings.lease) == (timedelta(seconds=30), timedelta(seconds=60))
    assert (settings.max_body, settings.max_redirects) == (10 * 1024 * 1024, 10)
    assert (settings.max_depth, settings.max_pages, settings.max_links_per_page) == (
        None,
        None,
        5000,
    )
    assert settings.max_pages_per_host == 10_000
    assert (settings.max_url_length, settings.max_path_segments) == (2000, 20)
    assert (settings.max_segment_repeats, settings.max_query_parameters) == (3, 20)
    assert (settings.claim, settings.mongo_driver) == ("each", "pymongo")
    assert settings.max_lost == 5
    assert settings.retry_policy == RetryPolicy(
        max_retry=3, base=timedelta(seconds=5), ceiling=timedelta(hours=1)
    )
    assert settings.host_policy == Policy(
        backoff_base=timedelta(seconds=10),
        backoff_max=timedelta(hours=1),
        max_failures=5,
        auto_throttle=True,
    )


def test_every_setting_says_what_it_is_and_shows_a_default_that_can_be_written_again():
    for name, field in described():
        assert field.doc, name
        again = layered(Settings(), assignments=[f"{name}={field.shown()}"])
        assert again == Settings(), name


ALL_PLACES = [
    ({}, {}, (), 1),
    ({"concurrency": 2}, {}, (), 2),
    ({"concurrency": 2}, {"CRAWLCW_CONCURRENCY": "3"}, (), 3),
    ({"concurrency": 2}, {"CRAWLCW_CONCURRENCY": "3"}, ("concurrency=4",), 4),
    ({}, {}, ("concurrency=4", " Concurrency = 5 "), 5),
]


@pytest.mark.parametrize(("project", "environment", "assignments", "held"), ALL_PLACES)
def test_the_last_place_wins(
    project: Mapping[str, Any],
    environment: Mapping[str, str],
    assignments: tuple[str, ...],
    held: int,
):
    base = Settings(concurrency=1, delay="7s")

    settings = layered(base, project=project, environment=environment, assignments=assignments)

    assert settings.concurrency == held
    assert settings.delay == timedelta(seconds=7)


def test_other_variables_are_no_settings():
    environment = {
        "CRAWLCW_LEDGER": "sqlite:///x.db",
        "CRAWLCW_TOKEN": "s3cret",
        "CRAWLCW_TEST_MONGODB_URI": "mongodb://localhost",
        "PATH": "/bin",
        "XCRAWLCW_DELAY": "1",
    }

    assert layered(Settings(), environment=environment) == Settings()
    assert unknown_variables(environment) == []


def test_an_unknown_variable_sets_nothing_and_is_named():
    environment = {
        "CRAWLCW_MAX_PAGE": "5",
        "CRAWLCW_LEDGR": "sqlite:///x.db",
        "CRAWLCW_BIN": "/opt/crawlcw",
        "CRAWLCW_": "",
        "CRAWLCW_DELAY": "2s",
        "CRAWLCW_max_depth": "3",
    }

    settings = layered(Settings(), environment=environment)

    assert settings == Settings(delay="2s", max_depth=3)
    assert unknown_variables(environment) == [
        f"the environment variable {name} is ignored: {hint}"
        for name, hint in {
            "CRAWLCW_": "`crawlcw settings` lists the settings",
            "CRAWLCW_BIN": "`crawlcw settings` lists the settings",
            "CRAWLCW_LEDGR": "did you mean CRAWLCW_LEDGER?",
            "CRAWLCW_MAX_PAGE": "did you mean CRAWLCW_MAX_PAGES?",
        }.items()
    ]


OFF = ("any_port", "keep_running", "cookies", "insecure", "browser", "keep_bodies", "trace")


def test_every_setting_can_be_set_by_the_environment():
    for name, field in described():
        text = dict.fromkeys(("auto_throttle", "obey_robots", "proxy_env", "truncate"), "no").get(
            name
        )
        text = text or dict.fromkeys(OFF, "yes").get(name)
        words = {
            "cache": "dev",
            "claim": "batch",
            "mongo_driver": "motor",
            "url_rules": "tracking",
            "referer": "origin",
        }
        text = text or words.get(name)
        text = text or ("2h" if field.unit == "duration" else "7")
        text = "1 GiB" if name == "memory_budget" else text
        text = "404,500-599" if field.unit == "statuses" else text
        shaped = {"headers": "X-Key: 7", "auth": "user:pass", "failure_alarm": "7%"}
        text = (shaped | {"webhook": "https://example.com/"}).get(name, text)
        ceilings = {"CRAWLCW_BACKOFF_MAX": "3h", "CRAWLCW_HOST_BACKOFF_MAX": "3h"}
        environment = ceilings | {f"CRAWLCW_{name.upper()}": text}
        settings = layered(Settings(), environment=environment)
        assert getattr(settings, name) != getattr(Settings(), name), name


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (
            {"project": {"concurency": 5}},
            "'concurency': did you mean concurrency? (from [tool.crawlcw] in pyproject.toml)",
        ),
        (
            {"assignments": ["zzz=1"]},
            "there is no setting 'zzz': `crawlcw settings` lists them (from -s)",
        ),
        ({"assignments": ["delay"]}, "-s takes NAME=VALUE, not 'delay'"),
        ({"assignments": ["delay=soon"]}, "setting delay: 'soon' is not a duration"),
        ({"environment": {"CRAWLCW_DELAY": "soon"}}, "(from the environment)"),
        ({"project": {"delay": []}}, "(from [tool.crawlcw] in pyproject.toml)"),
        ({"assignments": ["backoff_base=2h"]}, "backoff_max is less than backoff_base"),
    ],
)
def test_a_mistake_says_where_it_was_made(places: dict[str, Any], message: str):
    with pytest.raises(SettingsError) as caught:
        layered(Settings(), **places)

    assert message in str(caught.value)


def test_the_nearest_pyproject_counts(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text(
        "[tool.crawlcw]\nconcurrency = 7\ndelay = '2s'\nmax_body = '1 MiB'\n"
        "obey_robots = false\nallow_private = ['localhost']\n"
    )
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)

    settings = layered(Settings(), project=project_settings(below))

    assert (settings.concurrency, settings.delay) == (7, timedelta(seconds=2))
    assert (settings.obey_robots, settings.allow_private) == (False, ("localhost",))
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert project_settings(below) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.crawlcw\n", "cannot read .*pyproject.toml"),
        ("\udcff", "cannot read .*pyproject.toml"),
        ("[tool]\ncrawlcw = 5\n", "is not a table"),
        ("tool = 5\n", "is not a table"),
    ],
)
def test_a_broken_pyproject_is_one_clear_error(tmp_path: Path, text: str, message: str):
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8", errors="surrogateescape")

    with pytest.raises(SettingsError, match=message):
        project_settings(tmp_path)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"DOWNLOAD_DELAY": 1}, "there is no setting 'DOWNLOAD_DELAY': Scrapy's DOWNLOAD_DELAY is"),
        ({"download_delay": 1}, "there is no setting 'download_delay': Scrapy's DOWNLOAD_DELAY is"),
        ({"concurency": 1}, "there is no setting 'concurency': did you mean concurrency?"),
        ({"zzz": 1}, "there is no setting 'zzz': `crawlcw settings` lists them"),
    ],
)
def test_a_name_that_is_no_setting_is_told_in_one_sentence(given: Any, told: str):
    with pytest.raises(SettingsError) as caught:
        Settings(**given)

    assert str(caught.value).startswith(told)


def test_every_setting_is_read():
    package = Path(crawlcw.__file__).parent
    code = "\n".join(path.read_text() for path in package.rglob("*.py"))

    read = set(re.findall(r"(?<=settings\.)\w+|(?<=self\.)\w+", code))
    assert {name for name, _ in described()} - read == set()
