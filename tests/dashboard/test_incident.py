"""An incident from the first look to the last: an operator solves it on the page, and the database judges."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pytest

from ojster.audit.entries import AuditQuery
from ojster.core.durations import MINUTE, SECOND
from ojster.core.errors import QueueFull
from ojster.core.job import Job
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.queries import Page as JobPage
from ojster.queues.wire import BackpressureBody, QueueConfigBody
from ojster.service import Service
from tests import forked
from tests.browser import needs_browser
from tests.conftest import Bench
from tests.dashboard import data
from tests.dashboard.conftest import BUILT
from tests.dashboard.incident import Shop, has_expired, is_unlucky
from tests.dashboard.test_pages import open_page
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

pytestmark = [pytest.mark.anyio, pytest.mark.slow, needs_browser, BUILT]

MINUTES: Final = 10
"""How long the provider fails, in minutes."""

EACH_MINUTE: Final = 9
"""Number of payments in each of them."""

PLACES: Final = 5
"""Number of mails that may wait."""

MAX_CLICKS: Final = 12
"""Clicks in which the operator finds and ends all that is wrong."""

CHARGE: Final = {
    "queue": "payments",
    "retry": {"max_attempts": 2, "initial_interval": "PT2M", "jitter": False, "on_exhaustion": "dead_letter"},
}
"""Options of a payment: it is tried again once, after two minutes."""

REPORTS: Final = 3
"""Number of jobs that the worker holds which dies."""

COUNTED: Final = 'window.clicks = 0; addEventListener("pointerdown", () => { window.clicks += 1; }, true);'
"""Counts the clicks of a page since it was loaded."""


@pytest.fixture
def url(shared_url: str) -> str:
    return shared_url


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await condition():
            await asyncio.sleep(0.02)


class Incident:
    """The shop's jobs and workers, and the time."""

    def __init__(self, bench: Bench, server: str, folder: Path) -> None:
        self.bench = bench
        self.service: Service = bench.service
        self.environment = os.environ | {"OJSTER_DATABASE_URL": server, "SHOP": str(folder)}
        self.workers: list[forked.Popen] = []

    async def worker(self, queues: str) -> forked.Popen:
        """Start a worker, which is heard once a second, and wait until it is there."""
        words = ["worker", "tests.dashboard.incident:app", "--queues", queues, "--lease", "6"]
        command = [sys.executable, "-m", "ojster", *words]
        known = len(await self.service.fleet.all())
        started = forked.Popen(command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.workers.append(started)

        async def is_there() -> bool:
            return len(await self.service.fleet.all()) > known

        await until(is_there)
        return started

    async def later(self, seconds: float, *, dead: int = 0) -> None:
        """Let time pass, and then let servers do what is due, when the workers that live were heard again."""
        self.bench.clock.advance(seconds)

        async def are_heard() -> bool:
            silent = [one for one in await self.service.fleet.all() if one.last_seen_at < self.bench.clock.now]
            return len(silent) == dead

        await until(are_heard)
        await self.bench.run_all_due()

    async def wait_for(self, queue: str, **counts: int) -> None:
        """Wait until a queue has so many jobs in these states."""

        async def has() -> bool:
            states = (await self.service.jobs.count(queue)).get(queue, {})
            return all(states.get(state, 0) == number for state, number in counts.items())

        await until(has)

    async def jobs(self) -> dict[str, Job]:
        """Return all jobs by id."""
        found = await self.service.jobs.select(JobFilter(), JobPage(limit=1_000))
        assert len(found.jobs) == found.total
        return {job.id: job for job in found.jobs}

    async def audited(self) -> list[tuple[str, str]]:
        """Return the operations in the audit log and what it says of them, the last one first."""
        bodies = [msgspec.json.decode(entry.body) for entry in await self.service.audit.select(AuditQuery())]
        return [(body["operation"], body["detail"]["summary"]) for body in bodies]


class Operator:
    """Somebody who looks at one page of a browser, reads it, and clicks on what it shows. It types no address."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._loads = self._backs = 0
        page.on("load", self._count)

    def _count(self, _: Page) -> None:
        self._loads += 1

    async def begin(self, server: str) -> None:
        """Open the dashboard."""
        await self.page.add_init_script(COUNTED)
        await open_page(self.page, server)

    async def reads(self, what: Locator) -> None:
        await what.first.wait_for()

    async def clicks(self, what: Locator) -> None:
        """Click on the only thing that is called so."""
        await what.click()

    async def retries(self, number: int, *, of: int) -> None:
        """Find why dead letters became so many, and retry those of this cause."""
        page = self.page
        await self.reads(page.get_by_text(f"{of} jobs of the queue payments became dead letters"))
        await self.clicks(page.get_by_role("link", name="Open errors"))
        provider = page.get_by_role("row").filter(has_text="the provider answered … for order …")
        await self.clicks(provider.get_by_role("link"))
        await self.reads(page.get_by_text("raise ProviderError"))
        await self.goes_back()
        await self.clicks(provider.get_by_role("button", name=f"Retry {number} jobs"))
        await self.clicks(page.get_by_role("dialog").get_by_role("button", name=f"Retry {number} jobs"))
        await self.reads(page.get_by_text(f"{number} jobs retried."))

    async def finds_what_is_lost_and_full(self) -> None:
        """See what the dead worker held and what became of it, and that a queue is full."""
        page, pages = self.page, self.page.get_by_role("navigation", name="Pages")
        await self.clicks(pages.get_by_role("link", name="Workers"))
        lost = page.get_by_role("listitem").filter(has_text=f"held {REPORTS} jobs")
        await self.reads(lost.get_by_text("was lost"))
        assert await lost.get_by_role("link", name="report.build").count() == REPORTS
        assert await lost.get_by_text("completed").count() == REPORTS
        await self.clicks(pages.get_by_role("link", name="Queues"))
        full = page.get_by_role("row").filter(has=page.get_by_role("link", name="mail", exact=True))
        await self.reads(full.get_by_text(f"{PLACES} of {PLACES}"))
        await self.clicks(pages.get_by_role("link", name="Overview"))
        await self.reads(page.get_by_text(f"The queue mail is full: {PLACES} of {PLACES} places are taken. It refuses"))

    async def approves(self) -> None:
        """Let the workflow go on that waits for a person."""
        page = self.page
        await self.reads(page.get_by_text("1 workflow waits for an approval."))
        await self.clicks(page.get_by_role("link", name="Open workflows"))
        await self.clicks(page.get_by_role("link", name="Release 4.2"))
        await self.clicks(page.get_by_role("button", name="Approve step"))
        await self.clicks(page.get_by_role("dialog").get_by_role("button", name="Approve step"))
        await self.reads(page.get_by_text("deploy was approved."))

    async def goes_back(self) -> None:
        """Go back by the browser's button, which is a click, too."""
        await self.page.go_back()
        self._backs += 1

    async def effort(self) -> tuple[int, int]:
        """Return the number of clicks and of page loads: none of them was lost if there is one load."""
        clicks: int = await self.page.evaluate("window.clicks")
        return clicks + self._backs, self._loads


@pytest.fixture
async def incident(bench: Bench, server: str, tmp_path: Path) -> AsyncIterator[Incident]:
    bench.clock.advance(-MINUTES * MINUTE / SECOND)
    made = Incident(bench, server, tmp_path)
    yield made
    for worker in made.workers:
        worker.kill()
        worker.wait()


async def payments_fail(incident: Incident, shop: Shop) -> None:
    """For ten minutes, one payment of three fails. Those of the last two minutes wait for their second attempt."""
    shop.failure.touch()
    await incident.worker("payments,mail,releases")
    for minute in range(MINUTES):
        if minute:
            await incident.later(MINUTE / SECOND)
        for order in range(minute * EACH_MINUTE, (minute + 1) * EACH_MINUTE):
            await incident.bench.push("payments.charge", order, **CHARGE)
        await incident.wait_for("payments", available=0, active=0)
    shop.failure.unlink()


async def mail_fills_up(incident: Incident) -> None:
    """One mail hangs, others wait, and the next one is refused."""
    bound = QueueConfigBody(concurrency=1, backpressure=BackpressureBody(max_depth=PLACES))
    await incident.service.queues.configure("mail", bound)
    await incident.bench.push("mail.send", queue="mail")
    await incident.wait_for("mail", active=1)
    for _ in range(PLACES):
        await incident.bench.push("mail.send", queue="mail")
    with pytest.raises(QueueFull):
        await incident.bench.push("mail.send", queue="mail")


async def release_waits(incident: Incident) -> None:
    """Start a workflow, whose second step waits for an approval."""
    options = {"options": {"queue": "releases"}}
    build = data.step("build", type="release.build", **options)
    deploy = data.step("deploy", "build", type="release.deploy", manual=True, **options)
    await data.create(incident.bench, {"type": "graph", "name": "Release 4.2", "steps": [build, deploy]})
    await incident.wait_for("releases", completed=1)


async def worker_dies(incident: Incident, shop: Shop) -> None:
    """A worker dies with its jobs, which run again on the one that is started in its place."""
    worker = await incident.worker("reports")
    for number in range(REPORTS):
        await incident.bench.push("report.build", number, queue="reports")

    async def have_begun() -> bool:  # a job is active from its claim on, and given back if the claim is not answered
        return len(shop.noted("reports")) == REPORTS

    await until(have_begun)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    await incident.worker("reports")
    await incident.later(31, dead=1)
    await incident.wait_for("reports", completed=REPORTS)


def facts(job: Job) -> tuple[object, ...]:
    """Return what a retry would change of a job, and what a heartbeat of its worker does not."""
    return job.state, job.attempt, job.finished_at, job.errors, job.args, job.priority


def gave_up(job: Job) -> bool:
    return job.type == "payments.charge" and job.state == "discarded"


async def test_an_operator_ends_an_incident_in_twelve_clicks_and_changes_nothing_else(
    incident: Incident, shop: Shop, server: str, page: Page
) -> None:
    await payments_fail(incident, shop)
    await mail_fills_up(incident)
    await release_waits(incident)
    await worker_dies(incident, shop)
    before = await incident.jobs()
    failed = {id for id, job in before.items() if gave_up(job) and is_unlucky(job.args[0])}
    expired = {id for id, job in before.items() if gave_up(job) and has_expired(job.args[0])}
    waiting = {id for id, job in before.items() if job.state == "retryable"}
    assert (len(failed), len(expired), len(waiting)) == (22, 7, 7)

    operator = Operator(page)
    await operator.begin(server)
    await operator.retries(len(failed), of=len(failed) + len(expired))
    await operator.finds_what_is_lost_and_full()
    await operator.approves()
    assert await operator.effort() == (MAX_CLICKS, 1), "clicks, and page loads"

    await incident.wait_for("payments", available=0, active=0)
    await incident.wait_for("releases", completed=2)
    after = await incident.jobs()
    changed = {id for id, job in after.items() if id not in before or facts(job) != facts(before[id])}
    assert failed <= changed
    assert [after[id].type for id in changed - failed] == ["release.deploy"]
    assert {after[id].state for id in changed} == {"completed"}
    (approved, retried) = await incident.audited()
    assert approved[0] == "review_step"
    assert f"retried {len(failed)} jobs of payments.charge in the queue payments" in retried[1]

    await incident.later(2 * MINUTE / SECOND)
    await incident.wait_for("payments", available=0, active=0, retryable=0)
    assert shop.noted("charges") == [order for order in range(MINUTES * EACH_MINUTE) if not has_expired(order)]
