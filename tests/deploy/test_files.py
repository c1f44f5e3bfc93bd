"""The files of examples/deploy: valid files, existing commands and metrics."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml

from crawlcw.api.settings import Settings, layered, unknown_variables
from crawlcw.cli.main import cli
from crawlcw.telemetry.metrics import CRAWL_METRICS, LEDGER_METRICS, METRICS, Kind
from tests.support import needed
from tests.support.docs import REPOSITORY

DEPLOY = REPOSITORY / "examples" / "deploy"
UNIT = DEPLOY / "crawlcw@.service"
#: The default of a setting that the files depend on: the time for pages under way.
GRACE = Settings().grace.total_seconds()


def containerfile() -> dict[str, list[str]]:
    """Return the arguments of each instruction, in the order of the file."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "Containerfile").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if name.isupper():
            found.setdefault(name, []).append(rest)
    return found


def compose() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def manifests() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    return {each["kind"]: each for each in documents}


def pod() -> Any:
    return manifests()["Job"]["spec"]["template"]["spec"]


def unit(name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)
    return str(found)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the arguments of `crawlcw` in each file."""
    yield "Containerfile", json.loads(containerfile()["CMD"][0])
    crawler = compose()["services"]["crawler"]
    yield "compose", crawler["command"]
    yield "compose, healthcheck", crawler["healthcheck"]["test"][2:]
    container = pod()["containers"][0]
    yield "kubernetes", container["args"]
    yield "kubernetes, readiness", container["readinessProbe"]["exec"]["command"][1:]
    yield "systemd", shlex.split(unit("ExecStart").replace("%i", "books"))[1:]


@pytest.mark.parametrize(("place", "arguments"), list(commands()), ids=lambda each: str(each)[:24])
def test_every_command_can_be_given(place: str, arguments: list[str]):
    name, *rest = arguments
    command = cli.get_command(click.Context(cli), name)
    assert command is not None

    command.make_context(name, rest)


def test_the_container_is_run_by_nobody_special_and_hears_signals():
    found = containerfile()

    assert found["USER"] == ["10001"]
    assert "--uid 10001" in found["RUN"][-1]
    assert json.loads(found["ENTRYPOINT"][0]) == ["crawlcw"]
    assert found["STOPSIGNAL"] == ["SIGTERM"]
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    assert not [line for line in lines[lines.index("USER 10001") :] if line.startswith("RUN")]
    extras = re.search(r"/src\[([\w,]+)\]", found["RUN"][0])
    assert extras is not None
    assert set(extras[1].split(",")) <= known_extras()


def known_extras() -> set[str]:
    text = (REPOSITORY / "pyproject.toml").read_text()
    section = text.partition("[project.optional-dependencies]")[2].partition("[project.urls]")[0]
    return set(re.findall(r"^([a-z]+) = \[", section, re.MULTILINE))


def test_the_end_of_a_service_leaves_a_crawl_more_than_its_grace():
    assert int(compose()["services"]["crawler"]["stop_grace_period"].rstrip("s")) > GRACE
    assert pod()["terminationGracePeriodSeconds"] > GRACE
    assert int(unit("TimeoutStopSec")) > GRACE


def test_the_compose_file_has_three_equal_members_and_what_they_need():
    services = compose()["services"]
    members = {name: each for name, each in services.items() if name.startswith("mongo")}
    declared = json.loads((DEPLOY / "replica-set.json").read_text())

    assert [f"{name}:27017" for name in members] == [m["host"] for m in declared["members"]]
    assert len({tuple(each["command"]) for each in members.values()}) == 1
    assert f"--replSet={declared['_id']}" in members["mongo1"]["command"]
    mounted = [v for each in services.values() for v in each.get("volumes", []) if v[:2] == "./"]
    missing = {v.partition(":")[0] for v in mounted if not (DEPLOY / v.partition(":")[0]).exists()}
    # Certificates are made by a script.
    assert all(each.startswith("./certificates/") for each in missing)
    crawler = services["crawler"]
    assert (crawler["read_only"], crawler["cap_drop"]) == (True, ["ALL"])
    assert (DEPLOY / crawler["build"]["context"] / crawler["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap", "Job"])
def test_a_manifest_is_what_kubernetes_takes(kind: str):
    kubernetes_validate.validate(manifests()[kind], "1.33", strict=True)


def test_a_pod_may_do_nothing_but_crawl():
    container = pod()["containers"][0]
    security = container["securityContext"]

    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert str(pod()["securityContext"]["runAsUser"]) == containerfile()["USER"][0]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod()["automountServiceAccountToken"] is False
    # A Job with a podFailurePolicy must not restart pods by itself.
    assert pod()["restartPolicy"] == "Never"


def test_the_exit_codes_that_end_a_service_are_those_of_the_guide():
    rules = manifests()["Job"]["spec"]["podFailurePolicy"]["rules"]

    assert unit("RestartPreventExitStatus") == "2 3 78"
    assert rules[0]["onExitCodes"]["values"] == [2, 3, 78]


def test_systemd_takes_the_unit(tmp_path: Path):
    systemd_analyze = needed.program("systemd-analyze")
    # systemd-analyze checks that the command exists, so use one of this machine.
    made = tmp_path / "crawlcw@books.service"
    made.write_text(UNIT.read_text().replace("/srv/crawler/venv/bin/crawlcw", sys.executable))

    done = subprocess.run(
        [systemd_analyze, "verify", str(made)], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_environment_has_settings_that_exist():
    lines = (DEPLOY / "books.env").read_text().splitlines()
    pairs = dict(
        line.removeprefix("# ").split("=", 1) for line in lines if re.match(r"(# )?[A-Z_]+=", line)
    )

    assert unknown_variables(pairs) == []
    settings = layered(Settings(), environment=pairs)
    assert settings.failure_alarm == 0.5
    assert settings.webhook is not None


def test_the_role_is_that_of_the_guide():
    guide = (REPOSITORY / "crawlcw" / "guide" / "deploying.md").read_text()
    (block,) = re.findall(r"```json\n(\{\n  \"createRole\".*?)```", guide, re.DOTALL)

    assert json.loads(block) == json.loads((DEPLOY / "mongodb-role.json").read_text())


def dashboard() -> Any:
    return json.loads((DEPLOY / "grafana" / "crawlcw.json").read_text())


def expressions() -> list[str]:
    """Return every query of the dashboard and the alerts."""
    panels = [target["expr"] for each in dashboard()["panels"] for target in each["targets"]]
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return panels + [rule["expr"] for group in groups for rule in group["rules"]]


def render() -> dict[str, Any]:
    names = {}
    for metric in METRICS.values():
        ends = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        names.update({f"{metric.query_name}{end}": metric for end in ends})
    return names


def test_every_metric_of_the_dashboard_and_the_alerts_exists_with_its_labels():
    known = render()
    for expression in expressions():
        names = re.findall(r"\bcrawlcw_\w+", expression)
        assert names, expression
        for name in names:
            assert name in known, expression
            labels = set(re.findall(rf"{name}{{([^}}]*)}}", expression))
            used = {label for each in labels for label in re.findall(r"(\w+)=", each)}
            assert used <= {"job", "instance", *known[name].labels}, expression


def test_every_metric_of_a_crawl_is_on_the_dashboard():
    shown = {name for each in expressions() for name in re.findall(r"\bcrawlcw_\w+", each)}
    known = render()

    missing = {metric.name for metric in CRAWL_METRICS} - {known[name].name for name in shown}
    # The first only names the crawl; the other two are for queries of users.
    assert missing == {"crawlcw_info", "crawlcw_bodies_truncated", "crawlcw_claims"}


def test_every_metric_that_the_ledger_tells_of_is_on_the_dashboard():
    shown = {name for each in expressions() for name in re.findall(r"\bcrawlcw_\w+", each)}

    assert {metric.query_name for metric in LEDGER_METRICS} <= shown


def test_the_dashboard_is_one_that_grafana_provisions():
    board, ids = dashboard(), [each["id"] for each in dashboard()["panels"]]

    assert len(set(ids)) == len(ids)
    assert board["schemaVersion"] >= 39
    source = yaml.safe_load((DEPLOY / "grafana" / "datasource.yaml").read_text())
    assert {each["datasource"]["uid"] for each in board["panels"]} == {
        each["uid"] for each in source["datasources"]
    }
    assert all(0 <= each["gridPos"]["x"] <= 24 - each["gridPos"]["w"] for each in board["panels"])


def test_prometheus_takes_the_configuration_the_alerts_and_every_query(tmp_path: Path):
    promtool = needed.program("promtool")
    rules = [
        {"record": f"x:{n}", "expr": each.replace("$__rate_interval", "5m").replace("$job", ".*")}
        for n, each in enumerate(expressions())
    ]
    made = tmp_path / "rules.yml"
    made.write_text(yaml.safe_dump({"groups": [{"name": "x", "rules": rules}]}))

    for arguments in (["config", str(DEPLOY / "prometheus.yml")], ["rules", str(made)]):
        done = subprocess.run(
            [promtool, "check", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert os.access(DEPLOY / "make-certificates.sh", os.X_OK)
