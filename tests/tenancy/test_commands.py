"""A server process that requires tokens, called by the command line, a worker and an HTTP client."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from ojster.server.run import _is_loopback
from tests import forked
from tests.cli.test_commands import Ojster
from tests.postgres import free_port
from tests.waiting import PATIENCE, answers, until


class Guarded(Ojster):
    """The command line, connected to a server that requires tokens."""

    token = ""

    def with_token(self, token: str, *arguments: str, expect: int = 0) -> str:
        environment = {"OJSTER_DATABASE_URL": self.server, "OJSTER_TOKEN": token, "PATH": "/usr/bin:/bin"}
        deadline = time.monotonic() + PATIENCE
        code, output, errors = self.run(arguments, environment)
        while expect == 0 and "not issued here" in errors and time.monotonic() < deadline:
            time.sleep(0.05)  # the server learns a moment later what was written beside it
            code, output, errors = self.run(arguments, environment)
        assert code == expect, output + errors
        return output + errors

    @property
    def server(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    port = 0


@pytest.fixture
def guarded(tmp_path: Path, shared_url: str) -> Iterator[Guarded]:
    made = Guarded(tmp_path, shared_url)
    made.port = free_port()
    command = [sys.executable, "-m", "ojster", "serve", "--auth", "required", "--port", str(made.port), "--migrate"]
    log = tmp_path / "log"
    with log.open("wb") as file:
        environment = {"OJSTER_DATABASE_URL": shared_url, "PATH": os.environ["PATH"]}
        process = forked.Popen(command, cwd=tmp_path, env=environment, stderr=file)
    until(lambda: answers(f"{made.server}/health"))
    yield made
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert "ojster_" not in log.read_text(), "the log has a token"


def test_a_token_made_at_the_database_opens_the_server(guarded: Guarded) -> None:
    assert "Send a token" in guarded.with_token("", "push", "email.send", expect=1)
    owner = guarded("tokens", "create", "operators", "--role", "owner").strip()
    producer = guarded.with_token(owner, "tokens", "create", "shop", "--role", "producer", "--queue", "mail", "--json")
    secret = producer.partition('"secret":')[2].strip(' "\n').partition('"')[0]
    guarded.with_token(secret, "push", "email.send", "--queue", "mail")
    refusal = guarded.with_token(secret, "push", "email.send", "--queue", "other", expect=1)
    assert "is limited to the queues mail" in refusal
    assert "inspect" in guarded.with_token(secret, "jobs", "list", expect=1)
    assert "email.send" in guarded.with_token(owner, "jobs", "list")
    listed = guarded.with_token(owner, "tokens", "list")
    assert "producer in *" in listed
    assert secret.split("_", 2)[2] not in listed


def test_the_audit_log_tells_who_did_what_and_that_nothing_was_changed(guarded: Guarded) -> None:
    owner = guarded("tokens", "create", "ada", "--role", "owner").strip()
    viewer = guarded("tokens", "create", "eve", "--role", "viewer").strip()
    id = guarded.with_token(owner, "push", "email.send").strip().splitlines()[0]
    guarded.with_token(viewer, "jobs", "cancel", id, expect=1)
    guarded.with_token(owner, "jobs", "cancel", id)
    listed = json.loads(guarded.with_token(owner, "audit", "list", "--object", id, "--since", "-PT1H", "--json"))
    said = [(one["principal"], one["operation"], one["outcome"]) for one in listed["entries"]]
    assert said == [("ada", "cancel_job", "success"), ("eve", "cancel_job", "failure")]
    table = guarded.with_token(owner, "audit", "list", "--outcome", "failure")
    assert "eve" in table
    assert "ada" not in table
    exported = [json.loads(line) for line in guarded.with_token(owner, "audit", "export").splitlines()]
    assert [one["number"] for one in exported] == list(range(len(exported), 0, -1))
    csv = guarded.with_token(owner, "audit", "export", "--format", "csv", "--operation", "cancel_*").splitlines()
    assert [line.split(",")[2:4] for line in csv] == [
        ["principal", "summary"],
        ["ada", f"cancelled the job {id}"],
        ["eve", ""],
    ]
    place = guarded.with_token(owner, "audit", "verify").split()[-1]
    assert place in guarded.with_token(owner, "audit", "verify", "--after", place)
    assert "was changed" in guarded("audit", "verify", "--after", f"1:{'0' * 64}", expect=1)
    guarded.with_token(viewer, "audit", "list", expect=1)


def test_a_worker_with_a_token_works_at_a_guarded_server(guarded: Guarded) -> None:
    (guarded.folder / "shop.py").write_text(
        "from ojster import App\napp = App()\n@app.job('greet')\ndef greet(name):\n    return f'hello {name}'\n"
    )
    owner = guarded("tokens", "create", "operators", "--role", "owner").strip()
    worker = guarded("tokens", "create", "fleet", "--role", "worker").strip()
    id = guarded.with_token(owner, "push", "greet", "ada").strip().splitlines()[0]
    guarded.with_token(worker, "worker", "shop:app", "--until-empty", "--url", guarded.server)
    assert "hello ada" in guarded.with_token(owner, "jobs", "show", id)


def test_a_revoked_token_is_refused_by_a_server_that_knew_it(guarded: Guarded) -> None:
    viewer = guarded("tokens", "create", "look", "--role", "viewer").strip()
    guarded.with_token(viewer, "jobs", "list")
    guarded("tokens", "create", "twice", "--role", "viewer")
    guarded("tokens", "create", "twice", "--role", "viewer")
    for command in ("rotate", "revoke"):
        guarded("tokens", command, "twice", expect=4)
        guarded("tokens", command, "nobody", expect=3)
    viewer = guarded("tokens", "rotate", "look").strip()
    guarded.with_token(viewer, "jobs", "list")
    guarded("tokens", "revoke", "look")
    deadline = time.monotonic() + PATIENCE
    while True:  # the server is notified at once; if the notification is lost, within 15 seconds
        request = urllib.request.Request(f"{guarded.server}/ojs/v1/jobs", headers={"Authorization": f"Bearer {viewer}"})
        try:
            urllib.request.urlopen(request, timeout=PATIENCE).close()
        except urllib.error.HTTPError as refusal:
            assert refusal.code == 401
            break
        assert time.monotonic() < deadline, "the token is still good"
        time.sleep(0.05)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "::1", "localhost"])
def test_a_loopback_address_needs_no_token(host: str) -> None:
    assert _is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "jobs.example.com", ""])
def test_any_other_address_needs_a_token(host: str) -> None:
    assert not _is_loopback(host)
