"""The commands about jobs, dead letters and job types: what they ask for, print and return."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from ojster.cli.main import cli
from ojster.cli.options import ask
from ojster.client.interface import Client
from ojster.core.errors import Conflict, InvalidRequest, NotFound
from ojster.core.job import Job
from ojster.core.json_objects import Members
from ojster.jobs import pages
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.job_logs import JobLog, NewLine, NewLines
from ojster.jobs.messages import Acknowledgement, FailureReport
from ojster.jobs.service import JobService
from ojster.storage.open import open_database
from tests.conftest import request
from tests.waiting import LONG_WAIT


class Commands:
    """The ``ojster`` command, run in this process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments, env={"OJSTER_DATABASE_URL": self.url}, standalone_mode=False)

    def __call__(self, *arguments: str, expect: int = 0) -> str:
        done = self.run(*arguments)
        if done.exception is not None:
            raise done.exception
        assert (done.return_value or 0) == expect, done.output
        return done.output

    def json(self, *arguments: str, expect: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", expect=expect))

    def push(self, type: str = "a", *more: str) -> str:
        return self("push", type, *more).strip()

    def show(self, id: str) -> dict[str, Any]:
        shown: dict[str, Any] = self.json("jobs", "show", id)
        return shown

    def ask(self, question: Callable[[Client], Awaitable[Any]]) -> Any:
        return ask(self.url, question)

    def claim(self, count: int = 1, wait: float = 0.0) -> list[Job]:
        claimed: list[Job] = self.ask(lambda client: client.jobs.fetch(Claim(("default",), count, "w"), wait))
        return claimed

    def fail(self, code: str = "DISCARD", count: int = 1, message: str = "no") -> None:
        reports = [FailureReport(job.id, Failure("SmtpError", message, code), "w", 1) for job in self.claim(count)]
        self.ask(lambda client: client.jobs.fail(reports))

    def bury(self, *more: str, count: int = 1) -> list[str]:
        """Make dead letters."""
        ids = [self.push("mail", "--attempts", "1", "--dead-letter", *more) for _ in range(count)]
        self.fail("handler_error", count)
        return ids


def members(**given: Any) -> Members:
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in given.items()}


@pytest.fixture
def ojster(shared_url: str) -> Commands:
    return Commands(shared_url)


def test_push_sends_each_option(ojster: Commands) -> None:
    given = ("-q", "mail", "-p", "3", "--delay", "60", "--timeout", "1.5", "--attempts", "7")
    job = ojster.show(ojster.push("a.b", "1", *given))
    assert (job["type"], job["args"], job["queue"], job["priority"]) == ("a.b", [1], "mail", 3)
    assert (job["state"], job["max_attempts"], job["timeout_ms"]) == ("scheduled", 7, 1500)
    assert "on_exhaustion" not in job["retry"]  # it is the server's to say


def test_push_without_options_sends_none(ojster: Commands) -> None:
    job = ojster.show(ojster.push())
    assert (job["queue"], job["priority"], job["max_attempts"], job["state"]) == ("default", 0, 3, "available")
    assert "retry" not in job


def test_push_for_the_dead_letters_leaves_the_attempts_as_they_are(ojster: Commands) -> None:
    job = ojster.show(ojster.push("a", "--dead-letter"))
    assert (job["max_attempts"], job["retry"]["on_exhaustion"]) == (3, "dead_letter")


def test_push_prints_the_id_or_the_job(ojster: Commands) -> None:
    job = ojster.json("push", "a", "1")
    assert (job["type"], job["args"]) == ("a", [1])
    assert ojster("jobs", "show", job["id"])


def test_the_beginning_of_an_id_stands_for_a_job(ojster: Commands) -> None:
    id = ojster.push()
    assert ojster.show(id[:12])["id"] == id
    assert ojster.json("jobs", "prioritize", id[:12], "5")["id"] == id
    assert id in ojster("jobs", "cancel", id[:12])
    assert ojster("jobs", "history", id[:12])
    assert ojster.show(id)["state"] == "cancelled"


def test_a_command_acts_on_the_end_of_an_id_only_if_no_other_job_can_have_it(
    ojster: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (f"019{number}a000-0000-7000-8000-0123456789ab" for number in (1, 2))
    ojster.ask(lambda client: client.jobs.enqueue([request("a", id=first), request("a", id=second)]))
    for end, error, message in (
        (first[-12:], Conflict, "Several jobs have an id that ends in 0123456789ab. Give the whole id."),
        (ojster.push()[-11:], NotFound, "no job"),
    ):
        with pytest.raises(error, match=message):
            ojster("jobs", "cancel", end)
    monkeypatch.setattr(pages, "MAX_SEARCHED", 1)
    last = ojster.push()
    with pytest.raises(Conflict, match="Not all jobs were searched for an id that ends in"):
        ojster("jobs", "cancel", last[-12:])
    assert {ojster.show(id)["state"] for id in (first, second, last)} == {"available"}


def test_arguments_are_json_or_else_strings(ojster: Commands) -> None:
    texts = ("5", "[1]", "null", "five", "\ud7ff", "\ue000")
    id = ojster.push("a", *texts)
    shown = ojster.ask(lambda client: client.jobs.find(id)).envelope
    assert json.loads(shown)["args"] == [5, [1], None, "five", "\ud7ff", "\ue000"]


@pytest.mark.parametrize("text", [chr(0xD800), chr(0xDFFF), "a\udcffb"])
def test_arguments_that_are_not_utf_8_are_refused(ojster: Commands, text: str) -> None:
    with pytest.raises(click.UsageError, match="is not UTF-8"):
        ojster("push", "a", text)


@pytest.mark.parametrize(("result", "printed"), [(b'{"n":1}', {"n": 1}), (None, None)])
def test_push_waits_for_the_result_and_prints_it(ojster: Commands, result: bytes | None, printed: Any) -> None:
    ojster.push("first")
    ojster.claim()

    def work() -> None:
        (job,) = ojster.claim(wait=LONG_WAIT)
        ojster.ask(lambda client: client.jobs.acknowledge([Acknowledgement(job.id, result, "w", 1)]))

    worker = Thread(target=work)
    worker.start()
    assert json.loads(ojster("push", "a", "--wait", "30")) == printed
    worker.join()


def test_push_that_waits_in_vain_says_so_and_fails(ojster: Commands) -> None:
    said = ojster("push", "a", "--wait", "0", expect=1).strip()
    (job,) = ojster.json("jobs", "list")["jobs"]
    assert said == f"{job['id']} is available"
    assert ojster.json("push", "a", "--wait", "0", expect=1)["state"] == "available"


def test_jobs_are_listed_by_state_queue_and_type_newest_first(ojster: Commands) -> None:
    assert "There are no such jobs." in ojster("jobs", "list")
    ids = [ojster.push(type, "-q", queue) for type, queue in (("a.x", "p"), ("a.y", "q"), ("b", "q"))]
    ojster("jobs", "cancel", ids[0])

    def listed(*given: str) -> list[int]:
        return [ids.index(job["id"]) for job in ojster.json("jobs", "list", *given)["jobs"]]

    assert listed() == [2, 1, 0]
    assert listed("--state", "cancelled") == [0]
    assert listed("--queue", "q") == [2, 1]
    assert listed("--type", "a.*") == [1, 0]
    assert listed("--limit", "1") == [2]
    assert "1 of 3" in ojster("jobs", "list", "--limit", "1")
    assert "of 3" not in ojster("jobs", "list")


def test_a_list_has_20_jobs_unless_told_otherwise(ojster: Commands) -> None:
    for _ in range(21):
        ojster.push()
    assert len(ojster.json("jobs", "list")["jobs"]) == 20
    assert len(ojster.json("jobs", "list", "-n", "200")["jobs"]) == 21
    for limit in ("0", "201"):
        with pytest.raises(click.BadParameter):
            ojster("jobs", "list", "-n", limit)


def test_a_job_is_shown_with_its_state_attempts_and_arguments(ojster: Commands) -> None:
    id = ojster.push("mail", "ada", "--attempts", "5")
    ojster.claim()
    shown = ojster("jobs", "show", id)
    assert shown.startswith("mail active attempt 1 of 5\n")
    body = shown.partition("\n")[2]
    assert '\n  "args"' in body
    assert json.loads(body)["args"] == ["ada"]
    assert ojster.show(id)["worker_id"] == "w"


def test_one_job_is_cancelled(ojster: Commands) -> None:
    ids = [ojster.push(), ojster.push()]
    assert ojster("jobs", "cancel", ids[0]) == f"{ids[0]} is cancelled; it was available.\n"
    shown = ojster.json("jobs", "cancel", ids[1])
    assert shown == {"id": ids[1], "state": "cancelled", "previous_state": "available"}
    with pytest.raises(Conflict):
        ojster("jobs", "cancel", ids[0])


def test_a_sweep_needs_a_selection_and_a_confirmation(ojster: Commands) -> None:
    id = ojster.push()
    for command in ("cancel", "delete", "retry"):
        with pytest.raises(click.UsageError, match="Select jobs"):
            ojster("jobs", command, "--yes")
        asked = ojster.run("jobs", command, "--queue", "default")
        assert "In a script, use --yes" in str(asked.exception)
        number = "1 job" if command == "cancel" else "0 jobs"
        assert f"{command.capitalize()} {number}?" in asked.stderr
    assert ojster.show(id)["state"] == "available"


def test_a_sweep_takes_the_jobs_that_match_all_conditions(ojster: Commands) -> None:
    ids = [ojster.push(type, "-q", queue) for type, queue in (("a.x", "p"), ("a.y", "q"), ("b", "q"))]
    told = ojster.json("jobs", "cancel", "--type", "a.*", "--queue", "q", "--yes")
    assert told == {"matched": 1, "succeeded": 1, "failed": 0}
    assert [ojster.show(id)["state"] for id in ids] == ["available", "cancelled", "available"]
    assert "0 of 0 jobs are cancelled." in ojster("jobs", "cancel", "--older-than", "PT1H", "--yes")
    assert "2 of 2 jobs are cancelled." in ojster("jobs", "cancel", "--older-than", "PT0S", "--yes")
    assert "3 of 3 jobs are deleted." in ojster("jobs", "delete", "--state", "cancelled", "-s", "completed", "-y")


def test_durations_count_from_the_time_of_the_database_and_not_from_that_of_this_machine(
    ojster: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    ojster.push()
    ojster("cron", "add", "hourly", "0 * * * *", "a")
    now = time.time_ns
    with closing(open_database(ojster.url)):  # the processes on a SQLite file share its clock
        monkeypatch.setattr(time, "time_ns", lambda: now() + 7200 * 10**9)
        assert "0 of 0 jobs are cancelled" in ojster("jobs", "cancel", "--older-than", "PT1H", "--yes")
        assert "0 of 0 workflows are" in ojster("workflows", "cancel", "--older-than", "PT1H", "--yes")
        ojster("tokens", "create", "ada", "--role", "viewer", "--expires", "PT1H")
        until = datetime.now(UTC) + timedelta(hours=1, minutes=1)
        [token] = ojster.json("tokens", "list")["tokens"]
        assert datetime.fromisoformat(token["expires_at"]) <= until
        assert datetime.fromisoformat(ojster.json("cron", "show", "hourly", "--next", "1")["next"][0]) <= until
        assert ojster.json("cron", "backfill", "hourly", "--from", "-PT1H", "--dry-run")["occurrences"]
        assert "1 of 1 jobs are cancelled" in ojster("jobs", "cancel", "--older-than", "PT0S", "--yes")


def test_a_sweep_takes_the_jobs_that_failed_alike_and_says_before_how_many(ojster: Commands) -> None:
    for number in range(3):
        ojster.push()
        ojster.fail(message=f"card {number} was {('declined', 'lost')[number == 0]}")
    chosen = ("--error-pattern", "card 99 was declined")
    assert "Retry 2 jobs?" in ojster.run("jobs", "retry", *chosen).stderr
    assert ojster.json("jobs", "retry", *chosen, "--yes") == {"matched": 2, "succeeded": 2, "failed": 0}


def test_a_sweep_prints_twenty_refusals_and_fails(ojster: Commands) -> None:
    for _ in range(21):
        ojster.push()
    ojster.claim(21)
    done = ojster.run("jobs", "cancel", "--state", "active", "--yes")
    assert done.return_value == 1
    assert done.stdout == "0 of 21 jobs are cancelled.\n"
    lines = done.stderr.splitlines()
    assert len(lines) == 20
    assert all(line.endswith("Job is in active state; its worker is told to stop it.") for line in lines)
    done = ojster.run("jobs", "cancel", "--state", "active", "--yes", "--json")
    assert (json.loads(done.stdout)["failed"], done.stderr) == (21, "")


def test_a_history_is_printed_oldest_first(ojster: Commands) -> None:
    id = ojster.push()
    ojster.claim()
    ojster("jobs", "cancel", id)
    entries = ojster.json("jobs", "history", id)
    assert (entries[0]["event_type"], entries[-1]["event_type"]) == ("job.created", "job.cancelled")
    assert len({entry["id"] for entry in entries}) == len(entries)
    head, *lines = ojster("jobs", "history", id).splitlines()
    assert head.split() == ["time", "event", "actor", "details"]
    assert [line.split()[1] for line in lines] == [entry["event_type"].removeprefix("job.") for entry in entries]
    assert lines[2].split()[2] == "w"
    assert "worker_id=w" in lines[2]
    assert "=None" not in "".join(lines)


def test_a_pending_job_is_activated(ojster: Commands) -> None:
    ids = [ojster.ask(lambda client: client.jobs.enqueue([request("a", pending=True)]))[0].job.id for _ in range(2)]
    assert ojster("jobs", "activate", ids[0]) == f"{ids[0]} is available.\n"
    assert ojster.json("jobs", "activate", ids[1]) == {"id": ids[1], "state": "available"}


def test_notes_on_a_job_are_printed(ojster: Commands) -> None:
    id = ojster.push()
    assert "There are no notes." in ojster("jobs", "info", id)
    ojster.claim()
    ojster.ask(lambda client: client.notes.add_to_job(id, b'{"page":7}'))
    assert ojster.json("jobs", "info", id)["notes"][0]["note"] == {"page": 7}
    assert '{"page":7}' in ojster("jobs", "info", id)


def test_the_log_of_a_job_is_printed_with_what_is_missing(ojster: Commands) -> None:
    id = ojster.push()
    assert "There are no lines." in ojster("jobs", "logs", id)
    ojster.claim()
    lines = [NewLine(0, "warning", "shop", "no price\nof \x1b[31m7")]
    ojster.ask(lambda client: client.jobs.add_to_log(NewLines(id, lines, dropped=2)))
    ojster.ask(lambda client: client.jobs.cancel(id))
    printed = ojster("jobs", "logs", id)
    assert "2 lines are not kept." in printed
    assert "1970-01-01T00:00:00.000000Z attempt 1 WARNING shop no price\nof \\x1b[31m7\n" in printed
    assert ojster.json("jobs", "logs", id)["message"] == "no price\nof \x1b[31m7"


def test_the_log_of_a_job_is_followed_until_it_has_finished(ojster: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    id = ojster.push()
    read = JobService.log
    asked: list[int] = []

    async def log(self: JobService, job_id: str, after: int = 0) -> JobLog:
        if len(asked) == 1:
            await self.add_to_log(NewLines(id, [NewLine(0, "info", "shop", "last")]))
            await self.cancel(id)
        asked.append(after)
        return await read(self, job_id, after)

    monkeypatch.setattr("ojster.cli.commands.jobs.FOLLOW_SECONDS", 0)
    monkeypatch.setattr(JobService, "log", log)
    ojster.ask(lambda client: client.jobs.add_to_log(NewLines(id, [NewLine(0, "info", "shop", "first")])))
    printed = ojster("jobs", "logs", id, "--follow")
    assert [line.split()[-1] for line in printed.splitlines()] == ["first", "last"]
    assert asked == [0, 1]


def test_only_a_finished_job_is_retried(ojster: Commands) -> None:
    id = ojster.push()
    with pytest.raises(InvalidRequest, match="is available; only a discarded job can be retried"):
        ojster("jobs", "retry", id)
    ojster.fail()
    assert ojster("jobs", "retry", id) == f"{id} is available again.\n"
    ojster.fail()
    assert ojster.json("jobs", "retry", id) == {"id": id, "state": "available"}
    assert ojster.show(id)["state"] == "available"


def test_jobs_are_retried_by_the_type_of_their_error(ojster: Commands) -> None:
    ojster.push()
    ojster.fail()
    assert ojster.json("jobs", "retry", "--error-type", "Http*", "-y")["matched"] == 0
    assert ojster.json("jobs", "retry", "--error-type", "Smtp*", "-y")["succeeded"] == 1


def test_a_priority_is_set_relative_to_that_of_the_push(ojster: Commands) -> None:
    id = ojster.push("a", "-p", "5")
    assert ojster("jobs", "prioritize", id, "--", "-10") == f"The priority of {id} is -5.\n"
    assert ojster.json("jobs", "prioritize", id, "7") == {"id": id, "priority": 12}
    for by in ("-201", "201"):
        with pytest.raises(click.BadParameter):
            ojster("jobs", "prioritize", id, "--", by)


def test_dead_letters_are_listed_without_other_discarded_jobs(ojster: Commands) -> None:
    assert "There are no dead letters." in ojster("dead-letter", "list")
    ojster.push("other")
    ojster.fail()
    (id,) = ojster.bury()
    assert [job["id"] for job in ojster.json("dead-letter", "list")["jobs"]] == [id]
    assert ojster.json("dead-letter", "list", "--queue", "other")["jobs"] == []
    assert ojster.json("dead-letter", "list", "--type", "other")["jobs"] == []
    assert ojster.json("dead-letter", "list", "--type", "mail", "-q", "default", "-n", "1")["total"] == 1


def test_dead_letters_are_retried_one_by_one_or_all(ojster: Commands) -> None:
    ids = ojster.bury(count=3)
    for wrong in ((), (ids[0], "--all")):
        with pytest.raises(click.UsageError, match="Give either job ids or --all"):
            ojster("dead-letter", "retry", *wrong)
    assert ojster.json("dead-letter", "retry", ids[1])["retried"] == [ids[1]]
    assert ojster.json("dead-letter", "list")["total"] == 2
    assert ojster.json("dead-letter", "retry", "--all", "--type", "other")["matched"] == 0
    assert ojster.json("dead-letter", "retry", "--all", "--queue", "other")["matched"] == 0
    assert ojster("dead-letter", "retry", "--all", "--type", "mail") == "2 of 2 dead letters are retried.\n"
    assert ojster.json("dead-letter", "list")["total"] == 0


def test_all_dead_letters_are_more_than_a_page(ojster: Commands) -> None:
    async def bury(client: Client) -> None:
        retry = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
        await client.jobs.enqueue([request("mail", retry=retry) for _ in range(201)])
        jobs = await client.jobs.fetch(Claim(("default",), 201, "w"))
        await client.jobs.fail([FailureReport(job.id, Failure("E", "no"), "w", 1) for job in jobs])

    ojster.ask(bury)
    assert ojster.json("dead-letter", "retry", "--all") == {"matched": 201, "succeeded": 201, "failed": 0}


def test_dead_letters_are_deleted(ojster: Commands) -> None:
    ids = ojster.bury(count=3)
    assert ojster("dead-letter", "delete", *ids[:2]) == "2 dead letters are deleted.\n"
    assert ojster.json("dead-letter", "delete", ids[2]) == {"deleted": [ids[2]]}
    with pytest.raises(NotFound):
        ojster("jobs", "show", ids[0])


def test_defaults_of_job_types_are_listed_shown_and_deleted(ojster: Commands) -> None:
    assert "No job type has defaults." in ojster("job-types", "list")
    options = {"queue": "mail", "timeout_ms": 1500, "retry": {"max_attempts": 7}, "priority": 3}
    ojster.ask(lambda client: client.job_types.put("email.send", members(options=options, meta={"team": "x"})))
    ojster.ask(lambda client: client.job_types.put("plain", members(options={"priority": 1})))
    head, *rows = ojster("job-types", "list").splitlines()
    assert head.split() == ["type", "queue", "attempts", "timeout", "others", "changed"]
    assert rows[0].split()[:8] == ["email.send", "mail", "7", "1.5", "s", "priority,", "meta", "0"]
    assert rows[1].split()[:3] == ["plain", "priority", "0"]
    types = ojster.json("job-types", "list")["job_types"]
    assert [one["type"] for one in types] == ["email.send", "plain"]
    assert json.loads(ojster("job-types", "show", "plain")) == types[1]
    assert ojster("job-types", "delete", "plain") == "plain has no defaults any more.\n"
    assert ojster.json("job-types", "delete", "email.send") == {"type": "email.send", "deleted": True}
    assert ojster.json("job-types", "list") == {"job_types": []}


def test_jobs_are_found_by_what_they_contain_and_by_the_end_of_their_id(ojster: Commands) -> None:
    id, other = ojster.push("a", '{"order_id": 42}'), ojster.push("b", '{"order_id": 43}')
    found = ojster.json("jobs", "list", "--where", "args.order_id=42", "--type", "a", "--type", "c", "--sort", "oldest")
    assert ([job["id"] for job in found["jobs"]], found["total"]) == ([id], 1)
    assert ojster.show(id[-12:])["id"] == id
    with pytest.raises(NotFound):
        ojster.show("ffffffffffff")
    assert "1 of 1 jobs would be cancelled" in ojster("jobs", "cancel", "--where", "args.order_id=43", "--dry-run")
    ojster("jobs", "cancel", "--where", "args.order_id=43", "--yes")
    assert (ojster.show(id)["state"], ojster.show(other)["state"]) == ("available", "cancelled")
