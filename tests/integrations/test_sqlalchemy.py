"""Jobs after the commit of a session of SQLAlchemy, and through an outbox."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from ojster import App
from ojster.core.errors import BackendUnavailable, Unauthenticated
from ojster.sqlalchemy import Outbox, enqueue_after_commit
from ojster.testing import JobTester
from tests.waiting import never_retry

metadata = sqlalchemy.MetaData()
app = App("http://127.0.0.1:1")  # nobody listens there
outbox = Outbox(app, metadata)


@app.job("order.ship", retry=2)
def ship(order: int) -> int:
    return order


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'orders.db'}")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def jobs() -> Iterator[JobTester]:
    with JobTester(app) as tester:
        yield tester


def test_a_job_is_enqueued_after_the_commit(engine: sqlalchemy.Engine, jobs: JobTester) -> None:
    with Session(engine) as session, session.begin():
        id = enqueue_after_commit(session, ship.using(queue="mail"), 7)
        assert jobs.all() == []
    (job,) = jobs.all()
    assert (job.id, job.queue, job.args) == (id, "mail", [7])


def test_a_job_of_a_transaction_that_is_rolled_back_never_was(engine: sqlalchemy.Engine, jobs: JobTester) -> None:
    with Session(engine) as session:
        enqueue_after_commit(session, ship, 7)
        session.execute(sqlalchemy.text("SELECT 1"))
        session.rollback()
        enqueue_after_commit(session, ship, 8)
        session.execute(sqlalchemy.text("SELECT 1"))
        session.commit()
        session.execute(sqlalchemy.text("SELECT 1"))
        session.commit()
    assert [job.args for job in jobs.all()] == [[8]], "once, and not again with later transactions"


def test_savepoints_decide_only_about_their_own_jobs(engine: sqlalchemy.Engine, jobs: JobTester) -> None:
    with Session(engine) as session:
        with session.begin():
            enqueue_after_commit(session, ship, 1)
            with session.begin_nested() as savepoint:
                enqueue_after_commit(session, ship, 2)
                savepoint.rollback()
            with session.begin_nested():
                enqueue_after_commit(session, ship, 3)
            assert jobs.all() == []
        with contextlib.suppress(KeyError), session.begin(), session.begin_nested():
            enqueue_after_commit(session, ship, 4)
            raise KeyError
        enqueue_after_commit(session, ship, 5)
        session.close()
        session.execute(sqlalchemy.text("SELECT 1"))
        session.commit()
    assert [job.args for job in jobs.all()] == [[1], [3]]


def test_an_expired_token_empties_no_outbox(engine: sqlalchemy.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine.begin() as connection:
        outbox.add(connection, ship, 1)

    async def refuse(requests: object) -> None:
        raise Unauthenticated("The token has expired.")

    with JobTester(app) as jobs:
        monkeypatch.setattr(type(app.client().jobs), "enqueue", lambda self, requests: refuse(requests))
        with pytest.raises(BackendUnavailable):
            outbox.relay(engine)
        monkeypatch.undo()
        assert outbox.relay(engine) == 1
        assert len(jobs.all()) == 1


@pytest.fixture
def middleware() -> Iterator[None]:
    """Middleware that drops a job, and fails with another."""

    async def choose(request: dict[str, Any], enqueue: Any) -> Any:
        match request["args"]:
            case [1]:
                return None
            case [2]:
                raise ConnectionError("no answer")
        return await enqueue(request)

    app.enqueue_middleware.append(choose)
    yield
    app.enqueue_middleware.clear()


@pytest.mark.usefixtures("middleware")
def test_a_job_that_middleware_does_not_let_through_keeps_no_other_from_following_a_commit(
    engine: sqlalchemy.Engine, jobs: JobTester, caplog: pytest.LogCaptureFixture
) -> None:
    with Session(engine) as session, session.begin():
        ids = [enqueue_after_commit(session, ship, number) for number in range(4)]
    assert [job.args for job in jobs.all()] == [[0], [3]]
    assert [line.getMessage() for line in caplog.records] == [f"the job {ids[2]} was not enqueued after the commit"]


@pytest.mark.usefixtures("middleware")
def test_a_job_that_stays_in_the_outbox_keeps_no_other(engine: sqlalchemy.Engine, jobs: JobTester) -> None:
    with engine.begin() as connection:
        for number in range(4):
            outbox.add(connection, ship, number)
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="keeps 1 jobs for now: no answer"):
            outbox.relay(engine)
    assert [job.args for job in jobs.all()] == [[0], [3]], "middleware has dropped one"
    app.enqueue_middleware.clear()
    assert (outbox.relay(engine), outbox.relay(engine)) == (1, 0)
    assert [job.args for job in jobs.all()] == [[0], [3], [2]]


def test_wrong_arguments_are_refused_before_anything_is_written(engine: sqlalchemy.Engine) -> None:
    with engine.begin() as connection, pytest.raises(TypeError):
        outbox.add(connection, ship, "seven")  # type: ignore[arg-type]


def test_the_outbox_keeps_jobs_until_the_server_has_them(
    engine: sqlalchemy.Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    never_retry(monkeypatch)
    with engine.begin() as connection:
        ids = [outbox.add(connection, ship, number) for number in range(5)]
    with engine.connect() as connection:
        outbox.add(connection, ship, 99)
        connection.rollback()
    with pytest.raises(BackendUnavailable):
        outbox.relay(engine)
    with JobTester(app) as jobs:
        assert [outbox.relay(engine, 3), outbox.relay(engine), outbox.relay(engine)] == [3, 2, 0]
        assert [job.id for job in jobs.all()] == ids
        assert jobs.drain().attempts == 5


def test_a_job_that_is_relayed_twice_is_enqueued_once(engine: sqlalchemy.Engine, jobs: JobTester) -> None:
    with engine.begin() as connection:
        outbox.add(connection, ship, 1)
        outbox.add(connection, ship, 2)
    with engine.connect() as connection:
        rows = connection.execute(sqlalchemy.select(outbox.table)).all()
    outbox.relay(engine, 1)
    with engine.begin() as connection:  # as if the relay had died before its commit
        connection.execute(sqlalchemy.insert(outbox.table), rows[0]._asdict())
    assert outbox.relay(engine) == 2
    assert [job.args for job in jobs.all()] == [[1], [2]]


def test_a_job_that_is_never_taken_does_not_stop_the_others(
    engine: sqlalchemy.Engine, jobs: JobTester, caplog: pytest.LogCaptureFixture
) -> None:
    with engine.begin() as connection:
        bad = outbox.add(connection, ship, 1)
        outbox.add(connection, ship, 2)
        wrong = {"request": b'{"id":"%b","type":"NO TYPE","args":[]}' % bad.encode()}
        connection.execute(sqlalchemy.update(outbox.table).where(outbox.table.c.id == bad), wrong)
    assert outbox.relay(engine) == 2
    assert [job.args for job in jobs.all()] == [[2]]
    assert bad in caplog.text


def test_jobs_that_stay_for_ever_keep_no_younger_ones_back(engine: sqlalchemy.Engine, jobs: JobTester) -> None:
    with engine.begin() as connection:
        for number in range(5):
            outbox.add(connection, ship.using(queue="ojster.webhooks"), number)
        for number in range(5, 9):
            outbox.add(connection, ship, number)
    for _ in range(5):
        with contextlib.suppress(BackendUnavailable):
            outbox.relay(engine, 2)
    assert sorted(job.args[0] for job in jobs.all()) == [5, 6, 7, 8]
    with pytest.raises(BackendUnavailable, match=r"keeps 2 jobs for now: .*ojster\.webhooks"):
        outbox.relay(engine, 2)  # the oldest are tried again


def test_a_relay_logs_the_same_trouble_once_a_minute(
    engine: sqlalchemy.Engine, jobs: JobTester, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.begin() as connection:
        outbox.add(connection, ship.using(queue="ojster.webhooks"), 1)
    pauses = iter([1] * 125)
    now = 1000.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if next(pauses, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr("ojster.sqlalchemy.time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    with pytest.raises(KeyboardInterrupt):
        outbox.run(engine)
    assert [line.levelname for line in caplog.records if line.name == "ojster.sqlalchemy"] == ["WARNING"] * 2
