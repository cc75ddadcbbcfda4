"""What is in ``deploy/``: each command line is valid, and each metric in a query exists."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from click import Context
from prometheus_client.parser import text_string_to_metric_families

from ojster.capabilities import CAPABILITIES
from ojster.cli.main import cli
from ojster.cli.signals import ENDING_SECONDS
from ojster.server.endpoints import routes_of
from ojster.worker.worker import DEFAULT_GRACE
from tests.conftest import Bench, Http

DEPLOY = Path(__file__).parent.parent.parent / "deploy"

VARIABLES = {"PORT": "8080", "OJSTER_DATABASE_URL": "postgresql://jobs@db/jobs"}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    compose = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        if name != "postgres":
            yield f"compose {name}", service["command"]
        test = service["healthcheck"]["test"] if "healthcheck" in service else ["", ""]
        if test[1] == "ojster":
            yield f"compose health of {name}", test[2:]
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    for kind, line in re.findall(r"^(CMD|#   CMD|#   HEALTHCHECK) .*?(\[.*\])$", dockerfile, re.MULTILINE):
        words = json.loads(line)
        yield f"Dockerfile {kind}", words[1:] if words[0] == "ojster" else words
    for line in (DEPLOY / "Procfile").read_text().splitlines():
        name, _, words = line.partition(": ")
        yield f"Procfile {name}", shlex.split(re.sub(r"\$(\w+)", lambda one: VARIABLES[one[1]], words))[1:]
    for unit in (DEPLOY / "systemd").glob("*.service"):
        (line,) = re.findall(r"^ExecStart=\S*/ojster (.*)$", unit.read_text(), re.MULTILINE)
        yield unit.name, shlex.split(line)
    for template in (DEPLOY / "helm" / "ojster" / "templates").glob("*.yaml"):
        for words in re.findall(r"args: \{\{ concat \(list (.*?)\)", template.read_text()):
            yield template.name, [word.strip('"') for word in words.replace("$worker.app", "shop:app").split(" ")]


@pytest.mark.parametrize("words", [pytest.param(words, id=name) for name, words in command_lines()])
def test_each_command_line_is_valid(words: list[str]) -> None:
    name, command, rest = cli.resolve_command(Context(cli), words)
    assert command is not None
    command.make_context(name, rest, parent=Context(cli))


def test_a_unit_stops_its_main_process_alone() -> None:
    for unit in (DEPLOY / "systemd").glob("*.service"):  # else child processes would die with the jobs that they run
        assert "\nKillMode=mixed\n" in unit.read_text(), unit.name


def test_a_worker_has_the_time_that_its_end_may_take() -> None:
    (unit,) = (DEPLOY / "systemd").glob("ojster-worker@.service")
    service = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]["worker"]
    times = [
        *re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.MULTILINE),
        service["stop_grace_period"].removesuffix("s"),
        yaml.safe_load((DEPLOY / "helm" / "ojster" / "values.yaml").read_text())["terminationGracePeriodSeconds"],
    ]
    assert [int(time) > DEFAULT_GRACE + ENDING_SECONDS for time in times] == [True] * 3, times


def test_each_container_has_a_health_check_of_its_own() -> None:
    dockerfile = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert re.findall(r"^HEALTHCHECK", dockerfile, re.MULTILINE) == [], "a worker would inherit that of the server"
    services = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]
    checks = {name: service["healthcheck"]["test"][-1] for name, service in services.items()}
    assert (checks["server"], checks["worker"]) == ("http://127.0.0.1:8080", services["worker"]["command"][5])


def queries() -> Iterator[tuple[str, str]]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads((DEPLOY / "grafana" / "ojster.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for trigger in yaml.safe_load((DEPLOY / "kubernetes" / "keda.yaml").read_text())["spec"]["triggers"]:
        yield "KEDA", trigger["metadata"]["query"]
    for metric in yaml.safe_load((DEPLOY / "kubernetes" / "hpa.yaml").read_text())["spec"]["metrics"]:
        one = metric["external"]["metric"]
        labels = ",".join(f'{label}="{value}"' for label, value in one["selector"]["matchLabels"].items())
        yield "HPA", f"{one['name']}{{{labels}}}"


@pytest.mark.anyio
async def test_each_metric_in_a_query_exists_with_its_labels(http: Http, bench: Bench) -> None:
    for _ in range(4):
        await http.push(retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await http("PATCH", "/ojs/v1/admin/queues/default", {"backpressure": {"max_depth": 10, "action": "reject"}})
    again = await bench.push(priority=1, retry={"max_attempts": 2})
    await bench.fail(await bench.fetch_one())
    assert (await bench.find(again)).state == "retryable"
    bench.clock.advance(5)
    await bench.ack(await bench.fetch_one())
    await bench.fail(await bench.fetch_one())
    await http("POST", "/ojs/v1/workflows", {"type": "chain", "steps": [{"type": "a", "args": []}]})
    text = (await http("GET", "/metrics")).text
    labels_of: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        labels_of.setdefault(family.name, set())
        labels_of.setdefault(f"{family.name}_total", set())
        for sample in family.samples:
            labels_of.setdefault(sample.name, set()).update(sample.labels)
    for name, query in queries():
        for metric, _, matchers in re.findall(r"\b(ojs_\w+)(\{([^}]*)\})?", query):
            assert metric in labels_of, f"{name}: {metric}"
            used = set(re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers))
            assert used <= labels_of[metric], f"{name}: {metric} has only the labels {labels_of[metric]}"
    (oldest,) = re.findall(r'^ojs_queue_oldest_seconds\{queue="default"\} (\S+)$', text, re.MULTILINE)
    assert float(oldest) == 5


def test_requests_that_wait_as_long_as_their_caller_wants_do_not_count_as_slow() -> None:
    bodies_that_postpone = ("release", "release_job")
    waiting = {
        route.handler.__name__
        for route in routes_of(CAPABILITIES)
        if not {"wait", "wait_ms"}.isdisjoint((*route.query, *getattr(route.body, "__struct_fields__", ())))
    }
    left_out = [re.findall(r'request_seconds_bucket\{endpoint!~"([^"]*)"\}', query) for _, query in queries()]
    found = [set(names.split("|")) for query in left_out for names in query]
    assert found == [waiting.difference(bodies_that_postpone)] * 2


def test_each_alert_is_in_the_runbook() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())
    headings = re.findall(r"^## .*", (DEPLOY.parent / "docs" / "runbook.md").read_text(), re.MULTILINE)
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert sorted(re.findall(r"`(Ojster\w+)`", "\n".join(headings))) == sorted(alerts)


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_the_chart_makes_valid_objects() -> None:
    done = subprocess.run(
        ["helm", "template", "jobs", str(DEPLOY / "helm" / "ojster")], capture_output=True, check=True
    )
    made: list[dict[str, Any]] = list(yaml.safe_load_all(done.stdout))
    assert [one["kind"] for one in made if one] == ["Service", "Deployment", "Deployment"]
