"""Lists and statistics are read from a replica, as long as it is not too far behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import ANY

import httpx
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojster.cli.doctor import checks_of
from ojster.core.errors import InvalidRequest
from ojster.fleet.workers import Heartbeat
from ojster.server.application import Application
from ojster.service import Service
from ojster.storage.open import migrate_database, open_database
from ojster.storage.postgres.database import PostgresDatabase
from ojster.storage.postgres.replica import Lag, Replica
from ojster.storage.postgres.url import parse_postgres_url
from tests.conftest import request
from tests.postgres import PostgresServer, catch_up

pytestmark = pytest.mark.anyio

LONG = 1_000
"""A lag that no test reaches, in seconds."""


def url_of(primary: PostgresServer, standby: PostgresServer, lag: int = LONG) -> str:
    return f"{primary.url}&read_host={standby.folder}:{standby.port}&read_lag={lag}"


@pytest.fixture
async def service(primary: PostgresServer, standby: PostgresServer) -> AsyncIterator[Service]:
    migrate_database(primary.url)
    catch_up(primary, standby)
    made = Service(open_database(url_of(primary, standby)))
    yield made
    await made.close()


def replica_of(service: Service) -> Replica:
    assert isinstance(service.database, PostgresDatabase)
    assert service.database._replica is not None
    return service.database._replica


def say(server: PostgresServer, statement: bytes) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(statement)


async def types(service: Service) -> list[str]:
    return [job.type for job in (await service.jobs.select()).jobs]


async def test_lists_come_from_the_replica_and_single_jobs_from_the_primary(
    service: Service, primary: PostgresServer, standby: PostgresServer
) -> None:
    await service.jobs.enqueue([request("old")])
    catch_up(primary, standby)
    say(standby, b"SELECT pg_wal_replay_pause()")
    (new,) = await service.jobs.enqueue([request("new")])
    replica_of(service).measure()
    assert await types(service) == ["old"], "the primary has both"
    assert (await service.jobs.find(new.job.id)).type == "new"
    say(standby, b"SELECT pg_wal_replay_resume()")
    catch_up(primary, standby)
    assert sorted(await types(service)) == ["new", "old"]


async def test_a_replica_that_is_too_far_behind_is_not_asked_and_its_lag_is_shown(
    service: Service, primary: PostgresServer, standby: PostgresServer
) -> None:
    replica = replica_of(service)
    while replica.state.lag is None:  # it is unknown until the replica has reached a position of the primary
        catch_up(primary, standby)
        replica.measure()
    say(standby, b"SELECT pg_wal_replay_pause()")
    await service.jobs.enqueue([request("new")])
    replica.measure()
    replica._max_lag = 0.0
    replica.measure()
    transport = httpx.ASGITransport(Application(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        shown = (await client.get("/ojs/v1/admin/system/config")).json()["replica"]
        assert shown["is_used"] is False
        assert shown["lag_seconds"] > 0
        assert "ojs_replica_lag_seconds" in (await client.get("/metrics")).text
    assert await types(service) == ["new"], "the primary answers"


async def test_the_primary_answers_when_the_replica_is_gone(
    service: Service, primary: PostgresServer, standby: PostgresServer
) -> None:
    await service.jobs.enqueue([request("t")])
    catch_up(primary, standby)
    replica = replica_of(service)
    replica.measure()
    assert replica.state.is_used
    standby.stop("immediate")
    assert await types(service) == ["t"]
    replica.measure()
    assert replica.state.lag is None
    standby.start()
    replica.measure()
    catch_up(primary, standby)
    replica.measure()
    assert replica.state.is_used


async def test_the_doctor_says_what_the_replica_lacks_and_whether_it_is_one(
    service: Service, primary: PostgresServer, standby: PostgresServer
) -> None:
    catch_up(primary, standby)
    url = url_of(primary, standby)
    assert "replica" not in dict(checks_of(primary.url))
    find = dict(checks_of(url))["replica"]
    assert find() == (True, ANY)
    standby.promote()
    is_well, words = find()
    assert not is_well
    assert "accepts writes" in words


async def test_the_doctor_complains_of_a_replica_that_is_too_far_behind(
    service: Service, primary: PostgresServer, standby: PostgresServer
) -> None:
    say(standby, b"SELECT pg_wal_replay_pause()")
    await service.jobs.enqueue([request("new")])
    is_well, words = dict(checks_of(url_of(primary, standby, lag=0)))["replica"]()
    assert not is_well
    assert "behind" in words


async def test_a_replica_that_was_promoted_is_not_asked(
    service: Service, primary: PostgresServer, standby: PostgresServer
) -> None:
    """It may have become another database, while the primary lives on."""
    catch_up(primary, standby)
    replica = replica_of(service)
    replica.measure()
    assert replica.state.is_used
    standby.promote()
    replica.measure()
    await service.jobs.enqueue([request("new")])
    assert replica.state.lag is None
    assert await types(service) == ["new"]


async def test_a_replica_of_unknown_age_is_not_asked(
    service: Service, primary: PostgresServer, standby: PostgresServer
) -> None:
    say(standby, b"SELECT pg_wal_replay_pause()")
    await service.jobs.enqueue([request("new")])
    beginner = Service(open_database(url_of(primary, standby)))
    replica_of(beginner).measure()
    assert replica_of(beginner).state.lag is None
    assert await types(beginner) == ["new"]
    say(standby, b"SELECT pg_wal_replay_resume()")
    catch_up(primary, standby)
    replica_of(beginner).measure()
    assert replica_of(beginner).state.is_used
    await beginner.close()


async def test_what_operators_have_set_is_not_remembered_as_it_was_on_the_replica(
    service: Service, primary: PostgresServer, standby: PostgresServer
) -> None:
    catch_up(primary, standby)
    replica_of(service).measure()
    say(standby, b"SELECT pg_wal_replay_pause()")
    await service.fleet.beat(Heartbeat("w", queues=("default",)))
    await service.fleet.change_rule("w", {"enabled": False})
    replica_of(service).measure()
    assert replica_of(service).state.is_used
    await service.fleet.unrunnable()
    assert (await service.fleet.beat(Heartbeat("w", queues=("default",)))).directive == "quiet"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_the_lag_is_the_age_of_the_oldest_position_that_is_not_replayed(steps: list[tuple[int, int, int]]) -> None:
    lag = Lag()
    now = written = replayed = 0
    seen: dict[int, int] = {}
    for pause, more, less in steps:
        now += pause
        written += more
        replayed = max(replayed, written - less)
        seen.setdefault(written, now)
        lag.note(now, written, replayed)
        missing = [moment for position, moment in seen.items() if position > replayed]
        if len(missing) == len(seen):
            assert lag.seconds is None, "it may have been behind for hours"
        else:
            assert lag.seconds == (now - min(missing) if missing else 0)


def test_the_lag_is_unknown_after_a_failover_that_lost_something_until_the_replica_has_what_there_is() -> None:
    lag = Lag()
    lag.note(0.0, 1000, 1000)
    lag.note(1.0, 1100, 1000)
    lag.note(2.0, 950, 950)
    assert lag.seconds == 0
    lag.note(3.0, 1200, 950)
    lag.note(4.0, 1200, 1199)
    assert lag.seconds == 1


@pytest.mark.parametrize(
    "wrong",
    ["read_host=", "read_host=a,,b", "read_host=a:b", "read_host=ada:hunter2@b", "read_lag=-1", "read_lag=soon"],
)
def test_a_wrong_replica_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidRequest, match=wrong.partition("=")[0]) as refused:
        parse_postgres_url(f"postgresql://h/d?{wrong}")
    assert "hunter2" not in str(refused.value)


def test_a_replica_has_the_parameters_of_the_primary() -> None:
    parsed = parse_postgres_url("postgresql://ada:secret@a,b:7000/jobs?sslmode=require&read_host=c,[::1]:7001")
    assert parsed.replica is not None
    parts = psycopg.conninfo.conninfo_to_dict(parsed.replica)
    assert {parts["user"], parts["password"], parts["dbname"], parts["sslmode"]} == {"ada", "secret", "jobs", "require"}
    assert parts["host"] == "c,::1"
    assert "target_session_attrs" not in parts


def test_a_replication_slot_that_nobody_reads_is_named(primary: PostgresServer) -> None:
    horizon = dict(checks_of(primary.url))["horizon"]
    assert horizon()[0]
    with psycopg.connect(primary.url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_physical_replication_slot('standby_2', true)")
    is_well, words = horizon()
    assert not is_well
    assert "standby_2" in words
