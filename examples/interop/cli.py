"""The official command line of Open Job Spec, ``ojs``, with an Ojster server.

Each step is a command, what its output must contain, and whether it can also print JSON. A table without the values
that it is about counts as a failure.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import httpx

TIMEOUT = 30
"""Maximum time of one command, in seconds."""

STEPS = [
    ("health", "ok"),
    ("enqueue --type cli.work --queue cli --args [1]", "{id}"),
    ("enqueue --type cli.work --queue cli-options --priority 3 --max-attempts 2", "{id}"),
    ('enqueue --type cli.work --queue cli-options --meta {"trace":"t1"}', "{id}"),
    ('enqueue --type cli.work --queue cli-unique --unique-key order --args [{"order":1}]', "{id}"),
    ('enqueue --type cli.work --queue cli-unique2 --unique-key order --unique-within 1h --args [{"order":2}]', "{id}"),
    ("enqueue --batch {folder}/jobs.ndjson", "2"),
    ("status {waiting}", "available"),
    ("status {done}", "completed"),
    ("status {waiting} --detail", "cli.work"),
    ("status --detail {waiting}", "cli.work"),
    ("jobs", "{waiting}"),
    ("jobs --state available --queue cli-waiting", "{waiting}"),
    ("jobs --type cli.work --limit 5", "cli.work"),
    ("result {done}", "42"),
    ("result {done} --wait", "completed"),
    ("result --wait {done}", "42"),
    ("priority {waiting} --set 7", "7"),
    ("priority --set 7 {waiting}", "7"),
    ("retries {dead}", "1"),
    ("cancel {waiting2}", "cancelled"),
    ("retry {dead}", "{dead}"),
    ("bulk cancel --ids {waiting3}", "1 cancelled"),
    ("bulk retry --ids {dead2}", "1 retried"),
    ("bulk delete --ids {done2}", "1 deleted"),
    ("bulk cancel --state available --queue cli-many", "cancelled"),
    ("bulk delete --state completed --queue cli-many --older-than 24h", "deleted"),
    ("queues", "cli-waiting"),
    ("queues --stats cli-waiting", "1"),
    ("queues --create cli-made --concurrency 3", "cli-made"),
    ("queues --config cli-made --concurrency 5", "cli-made"),
    ("queues --config cli-made --retention 24h", "cli-made"),
    ("queues --pause cli-made", "cli-made"),
    ("queues --resume cli-made", "cli-made"),
    ("queues --purge cli-made", "cli-made"),
    ("queues --purge cli-made --states completed,discarded", "cli-made"),
    ("queues --delete cli-made", "cli-made"),
    ("workers", "cli-worker"),
    ("workers --detail cli-worker", "cli-worker"),
    ("workers --quiet-worker cli-worker", "cli-worker"),
    ("workers --quiet", "quiet"),
    ("workers --resume", "resume"),
    ("workers --deregister cli-worker", "cli-worker"),
    ("dead-letter", "{dead3}"),
    ("dead-letter --limit 2", "{dead3}"),
    ("dead-letter --stats", "1"),
    ("dead-letter --retry {dead3}", "{dead3}"),
    ("dead-letter --delete {dead4}", "{dead4}"),
    ("dead-letter --purge --older-than 7d", ""),
    ("dead-letter --purge", ""),
    ("cron --register --name cli-cron --expression 0_3_*_*_* --type cli.work", "cli-cron"),
    ("cron", "0_3_*_*_*"),
    ("cron --enabled true", "cli-cron"),
    ("cron --detail cli-cron", "0_3_*_*_*"),
    ("cron --update cli-cron --expression 0_4_*_*_*", "cli-cron"),
    ("cron --update cli-cron --type cli.other --queue cli", "cli-cron"),
    ("cron --trigger cli-cron", "cli-cron"),
    ("cron --history cli-cron", "{id}"),
    ("cron --pause cli-cron", "paused"),
    ("cron --resume cli-cron", "resumed"),
    ("cron --delete cli-cron", "cli-cron"),
    ('workflow create --name cli-flow --steps [{"id":"a","type":"cli.flow","args":[1]}]', "id={id}"),
    ("workflow list", "{workflow}"),
    ("workflow list --state running", "{workflow}"),
    ("workflow status {workflow}", "running"),
    ("workflow cancel {workflow}", "{workflow}"),
    ("webhooks create --url http://127.0.0.1:9/hook --events job.completed", "{id}"),
    ("webhooks list", "127.0.0.1:9"),
    ("webhooks get {webhook}", "127.0.0.1:9"),
    ("webhooks test {webhook}", ""),
    ("webhooks rotate-secret {webhook}", ""),
    ("webhooks delete {webhook}", "{webhook}"),
    ("rate-limits", "cli-key"),
    ("rate-limits --inspect cli-key", "cli-key"),
    ("rate-limits --override cli-key --concurrency 4", "cli-key"),
    ("rate-limits --override cli-key --clear", "cli-key"),
    ("metrics", "ojs"),
    ("metrics --format prometheus", "ojs_"),
    ("stats", "[1-9]"),
    ("stats --queue cli-waiting", "[1-9]"),
    ("stats --history", ""),
    ("stats --history --period 5m --since 24h", ""),
    ("system maintenance", "DISABLED"),
    ("system maintenance --enable --reason upgrade", "enabled"),
    ("system maintenance --disable", "disabled"),
    ("system config", ""),
    ("doctor", ""),
    ("doctor --verbose", "passed"),
    ("doctor --production", ""),
    ("debug inspect {done}", "completed"),
    ("debug trace {done}", "completed"),
    ("debug history {done}", "completed"),
    ("debug replay {done}", "{id}"),
    ("debug bottleneck", ""),
    ("debug queue cli-waiting", "cli-waiting"),
    ("debug failures", "cli.work"),
    ("debug health", "ok"),
]
"""Commands, with what they must print. ``{id}`` stands for any identifier, and ``_`` for a space in an expression."""

KNOWN = {
    "priority {waiting} --set": "the program reads no option after an argument",
    "webhooks create": "the program takes the URL of the subscription as that of the server",
    "debug replay": "the program sends its request as text in base64",
    "doctor": "the program asks for /v1/health, a path that no specification has",
    "retries": "no specification has the path",
    "queues --purge": "no specification has the path",
    "workers --quiet": "no specification has the request",
    "workers --resume": "no specification has the request",
    "workers --deregister": "the worker is alive; quiet it instead",
    "dead-letter --purge": "no specification has the path",
    "cron --history": "no specification has the path",
    "cron --pause": "no specification has the path",
    "cron --resume": "no specification has the path",
    "cron --update": "the program names members that the specification does not have",
    "rate-limits --override": "no specification has the path",
    "metrics": "the metrics are at /metrics",
    "system": "no specification has the path",
    "bulk delete --state": "the program sends a duration, and the specification has a time",
    "stats --history --period": "the program sends a duration, and the specification has a time",
    "queues --config cli-made --retention": "the program sends a text, and the specification has an object",
    "debug failures": "the program looks for a member that the specification does not have",
    "debug health": "the program looks for members that the specification does not have",
    "rate-limits": "the list has only limits that a job is running under",
}
"""Beginnings of commands that are known not to work, with the reason."""

_NO_JSON = "no JSON"

_ID = "[0-9a-z_]*[0-9a-f]{8}[0-9a-f-]{4,}"


def reason_of(command: str, outcome: str) -> str | None:
    """Return why a command is known not to work."""
    if outcome.startswith(_NO_JSON):
        return "the program prints no JSON"
    return next((reason for start, reason in KNOWN.items() if f"{command} ".startswith(f"{start} ")), None)


def prepare(url: str, folder: Path) -> dict[str, str]:
    """Make what the commands are about; return the identifiers that they name."""
    http = httpx.Client(base_url=f"{url}/ojs/v1", timeout=30)

    def push(queue: str, **options: object) -> str:
        body = {"type": "cli.work", "args": [1], "options": {"queue": queue} | options}
        return str(http.post("/jobs", json=body).raise_for_status().json()["job"]["id"])

    def run(queue: str, outcome: str) -> str:
        dead = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
        id = push(queue, retry=dead, rate_limit={"key": "cli-key", "concurrency": 9})
        taken = http.post("/workers/fetch", json={"queues": [queue], "worker_id": "cli-worker"}).raise_for_status()
        done: dict[str, object] = {"job_id": id, "worker_id": "cli-worker"}
        more = {"result": 42} if outcome == "ack" else {"error": {"code": "broken", "message": "it broke"}}
        assert taken.json()["jobs"]
        http.post(f"/workers/{outcome}", json=done | more).raise_for_status()
        return id

    (folder / "jobs.ndjson").write_text('{"type": "cli.work", "args": [1]}\n' * 2)
    named = {name: push(f"cli-{name}") for name in ("waiting", "waiting2", "waiting3", "many")}
    named |= {name: run(f"cli-{name}", "ack") for name in ("done", "done2")}
    named |= {name: run(f"cli-{name}", "nack") for name in ("dead", "dead2", "dead3", "dead4")}
    http.post("/workers/heartbeat", json={"worker_id": "cli-worker", "state": "running"}).raise_for_status()
    steps = [{"id": "a", "type": "cli.flow", "args": [1]}]
    named["workflow"] = http.post("/workflows", json={"name": "flow", "steps": steps}).json()["workflow"]["id"]
    hook = {"url": "http://127.0.0.1:9/other", "events": ["job.completed"]}
    named["webhook"] = http.post("/webhooks/subscriptions", json=hook).raise_for_status().json()["id"]
    return named | {"folder": str(folder)}


def try_steps(program: str, url: str, folder: Path, as_json: bool) -> dict[str, str]:
    """Run each command; return ``ok`` or the reason of the failure by command."""
    named, results = prepare(url, folder), {}
    style = ["--json"] if as_json else []
    for words, expected in STEPS:
        shown = words
        for name, value in named.items():
            shown = shown.replace(f"{{{name}}}", value)
        command = [program, "--url", url, *style, *(_spaces(word) for word in shown.split())]
        results[words] = _outcome(command, url, "" if as_json else _pattern(expected, named), as_json)
    return results


def _spaces(word: str) -> str:
    return word.replace("_", " ") if "_*_" in word else word


def _pattern(expected: str, named: dict[str, str]) -> str:
    if expected == "[1-9]":
        return expected
    parts = re.split(r"\{(\w+)\}", _spaces(expected))
    ids = [_ID if name == "id" else re.escape(named[name][:8]) for name in parts[1::2]]
    return "".join(re.escape(text) + id for text, id in zip(parts[::2], [*ids, ""], strict=True))


def _outcome(command: list[str], url: str, pattern: str, as_json: bool) -> str:
    environment = os.environ | {"OJS_URL": url}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return f"not over after {TIMEOUT} s"
    if ran.returncode:
        return (ran.stderr or ran.stdout).strip()[:200] or f"ended with {ran.returncode}"
    if not re.search(pattern, ran.stdout):
        return "not shown: " + " ".join(ran.stdout.split())[:200]
    if as_json:
        try:
            json.loads(ran.stdout or "null")
        except ValueError:
            return f"{_NO_JSON}: {ran.stdout.strip()[:100]}"
    return "ok"
