"""Tests of the shop: ``python manage.py test``."""

from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO
from threading import get_ident

from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from ojster.django.backend import backends
from ojster.testing import JobTester
from shop.models import Order
from shop.tasks import OutOfStock, ship, tell

try:
    from django.tasks import TaskResult, task
    from django.tasks.signals import task_finished
except ImportError:  # Django 5.2 with the package django-tasks
    from django_tasks import TaskResult, task
    from django_tasks.signals import task_finished


@task
def leave() -> None:
    """Fail as a program does that ends."""
    raise SystemExit("enough")


@task
def build() -> object:
    """Return what is no JSON."""
    return print


@task
async def abuild() -> object:
    """Return what is no JSON, from a coroutine."""
    return print


where: list[tuple[int, int]] = []
"""The threads and connections in which tasks have run."""


@task
def look() -> None:
    """Note the thread and the connection of a plain task."""
    Order.objects.exists()
    where.append((get_ident(), id(connection.connection)))


@task
async def alook() -> None:
    """Note the thread and the connection that a coroutine uses."""
    await Order.objects.aexists()
    await sync_to_async(look.func)()


class Shipping(TestCase):
    """Tasks that run in the transaction of the test, with the jobs in memory."""

    def setUp(self) -> None:
        self.jobs = self.enterContext(JobTester(backends()[0].app))

    def test_a_placed_order_is_shipped(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):  # the view has a transaction of its own
            answer = self.client.post("/orders/7")
        assert answer.status_code == 202
        self.jobs.assert_enqueued(ship, 7)
        result = ship.get_result(answer.json()["task"])
        assert (result.status, result.attempts, result.args) == ("READY", 0, [7])
        self.jobs.drain()
        result.refresh()
        assert (result.status, result.return_value) == ("SUCCESSFUL", "order 7 is shipped")
        assert result.attempts == 1
        assert Order.objects.get(number=7).shipped_at is not None

    def test_a_task_of_a_transaction_that_fails_never_was(self) -> None:
        Order.objects.create(number=7)
        with (
            self.captureOnCommitCallbacks(execute=True),
            self.assertRaisesMessage(Exception, ""),
            transaction.atomic(),
        ):
            ship.enqueue(8)
            Order.objects.create(number=7)
        self.jobs.refute_enqueued(ship)

    def test_what_waits_for_a_commit_that_never_comes_is_told(self) -> None:
        self.client.post("/orders/7")
        with self.assertRaisesMessage(AssertionError, "1 will be enqueued after the commit of an open transaction."):
            self.jobs.assert_enqueued(ship, 7)
        with self.captureOnCommitCallbacks(execute=True):
            self.client.post("/orders/8")
        with self.assertRaisesMessage(AssertionError, "other types: shop.tasks.ship. 1 will be enqueued"):
            self.jobs.assert_enqueued("mail.send")

    def test_tasks_run_as_soon_as_they_are_enqueued(self) -> None:
        Order.objects.create(number=7)
        with self.jobs.eager(), self.captureOnCommitCallbacks(execute=True):
            ship.enqueue(7)
            assert Order.objects.get(number=7).shipped_at is not None
            self.client.post("/orders/8")
        assert Order.objects.get(number=8).shipped_at is not None

    def test_tasks_use_the_connection_of_the_test(self) -> None:
        here = get_ident(), id(connection.connection)
        where.clear()
        look.enqueue()
        alook.enqueue()
        self.jobs.drain()
        with self.jobs.eager():
            look.enqueue()
            alook.enqueue()
        assert where == [here] * 4

    async def test_asynchronous_tests_share_their_connection_with_tasks(self) -> None:
        await Order.objects.acreate(number=7)
        where.clear()
        await look.aenqueue()
        await alook.aenqueue()
        await tell.aenqueue(7, name="Ada")
        await self.jobs.adrain()
        with self.jobs.eager():
            await look.aenqueue()
            await alook.aenqueue()
        assert where == [await sync_to_async(lambda: (get_ident(), id(connection.connection)))()] * 4

    def test_enqueued_tasks_are_asserted_with_the_arguments_of_their_functions(self) -> None:
        ship.enqueue(number=7)
        tell.using(priority=9).enqueue(7, name="Ada")
        tell.enqueue(8)
        self.jobs.assert_enqueued(ship, 7, queue="default", count=1)
        self.jobs.assert_enqueued(tell, 7, name="Ada", priority=9)
        self.jobs.assert_enqueued(tell, 8, name="you")
        self.jobs.assert_enqueued(tell, count=2)
        self.jobs.refute_enqueued(ship, number=8)
        assert [job.args for job in self.jobs.all(ship)] == [[[], {"number": 7}]]
        with self.assertRaisesMessage(AssertionError, "shop.tasks.tell(7, name='Ada') in mail, available"):
            self.jobs.assert_enqueued(tell, 9)
        with self.assertRaisesMessage(TypeError, "shop.tasks.ship: "):
            self.jobs.assert_enqueued(ship, numbr=7)
        with self.assertRaisesMessage(TypeError, "is no job type"):
            self.jobs.assert_enqueued(ship.func, 7)

    def test_a_coroutine_gets_its_context_and_named_arguments(self) -> None:
        Order.objects.create(number=7)
        result = tell.enqueue(7, name="Ada")
        assert (result.task.queue_name, result.task.priority) == ("mail", 5)
        self.jobs.drain()
        result.refresh()
        assert result.return_value == {"told": "Ada", "attempt": 1}

    def test_a_task_that_fails_is_tried_again_and_tells_why(self) -> None:
        result = ship.enqueue(-1)
        self.jobs.drain(check=False)
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == ("FAILED", 3, 3)
        assert result.errors[0].exception_class is OutOfStock
        assert "order -1" in result.errors[0].traceback
        assert result.errors[0].traceback.startswith("Traceback (most recent call last):\n  File ")
        assert result.errors[0].traceback.endswith("OutOfStock: order -1\n")
        with self.assertRaises(ValueError):
            result.return_value  # noqa: B018

    def test_a_task_that_leaves_or_returns_what_is_no_json_fails_as_django_s_own_do(self) -> None:
        for one, error in ((leave, SystemExit), (build, TypeError), (abuild, TypeError)):
            finished: list[str] = []

            def note(task_result: TaskResult, finished: list[str] = finished, **more: object) -> None:
                finished.append(task_result.status)

            task_finished.connect(note)
            result = one.enqueue()
            self.jobs.drain(check=False)
            task_finished.disconnect(note)
            result.refresh()
            assert (result.status, result.errors[0].exception_class) == ("FAILED", error)
            assert finished == ["FAILED"] * 3

    def test_a_task_runs_later_and_by_priority(self) -> None:
        later = ship.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
        ship.using(priority=-10).enqueue(2)
        ship.using(priority=10).enqueue(3)
        assert [job.args[0] for job in self.jobs.all()] == [[1], [2], [3]]
        self.jobs.drain()
        assert ship.get_result(later.id).status == "READY"
        self.jobs.advance(3601)
        self.jobs.drain()
        assert ship.get_result(later.id).status == "SUCCESSFUL"


class Dashboard(TestCase):
    """The dashboard: for superusers, behind the login of the site."""

    def setUp(self) -> None:
        self.jobs = self.enterContext(JobTester(backends()[0].app))
        self.task = ship.enqueue(7)

    def test_a_superuser_sees_the_jobs_and_changes_them(self) -> None:
        self.client.force_login(User.objects.create_superuser("ada"))
        page = self.client.get("/ops/dashboard/jobs/x")
        assert (page.status_code, page["content-type"]) == (200, "text/html; charset=utf-8")
        assert self.client.get("/ops/").headers["location"] in ("dashboard/", "docs")
        listed = self.client.get("/ops/ojs/v1/jobs").json()["jobs"]
        assert [job["type"] for job in listed] == ["shop.tasks.ship"]
        paused = self.client.post("/ops/ojs/v1/queues/default/pause", content_type="application/json")
        assert (paused.status_code, paused.json()["status"]) == (200, "paused")
        assert self.client.get("/ops/ojs/v1/events/changes").status_code == 422
        cancelled = self.client.delete(f"/ops/ojs/v1/jobs/{self.task.id}")
        assert (cancelled.status_code, cancelled.json()["job"]["state"]) == (200, "cancelled")

    def test_pages_of_other_sites_cannot_use_the_login(self) -> None:
        self.client.force_login(User.objects.create_superuser("ada"))
        foreign = self.client.delete(f"/ops/ojs/v1/jobs/{self.task.id}", headers={"origin": "http://evil.example"})
        assert foreign.status_code == 403
        self.task.refresh()
        assert self.task.status == "READY"

    def test_others_are_sent_to_the_login_and_their_requests_are_refused(self) -> None:
        answer = self.client.get("/ops/dashboard/")
        assert (answer.status_code, answer["location"]) == (302, "/admin/login/?next=/ops/dashboard/")
        with self.settings(LOGIN_URL="/welcome/"):
            assert self.client.get("/ops/dashboard/")["location"] == "/welcome/?next=/ops/dashboard/"
        assert self.client.get("/ops/ojs/v1/jobs").status_code == 403
        self.client.force_login(User.objects.create_user("eve", is_staff=True))
        assert self.client.get("/ops/dashboard/").status_code == 403
        assert self.client.delete(f"/ops/ojs/v1/jobs/{self.task.id}").status_code == 403

    def test_the_admin_leads_to_it(self) -> None:
        self.client.force_login(User.objects.create_superuser("ada"))
        assert '<a href="/ops/dashboard/"' in self.client.get("/admin/").content.decode()
        with redirect_stdout(StringIO()) as dumped:  # all models have tables
            call_command("dumpdata")
        assert "auth.user" in dumped.getvalue()
        self.client.force_login(User.objects.create_user("eve", is_staff=True))
        assert "/ops/dashboard/" not in self.client.get("/admin/").content.decode()


class Committing(TransactionTestCase):
    """Tasks of tests whose transactions are committed."""

    def test_an_order_enqueues_a_task_with_its_transaction(self) -> None:
        with JobTester(backends()[0].app) as jobs:
            self.client.post("/orders/7")
            jobs.assert_enqueued(ship, 7)
            before = id(connection.connection)
            jobs.drain()
            assert id(connection.connection) == before
        assert Order.objects.get(number=7).shipped_at is not None
