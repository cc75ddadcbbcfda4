"""What a caller may do, call by call: limited to a tenant, to some queues, or to some operations.

Spec: ojs-security 7, ojs-multi-tenancy
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from ojster.core.access import (
    NO_EXPIRY_US,
    Access,
    Grant,
    Operation,
    Role,
    Token,
    covers,
    hash_secret,
    join_token,
    read_grant,
    split_token,
)
from ojster.core.errors import Forbidden, InvalidRequest, NotFound, OjsterError
from ojster.core.job import Job
from ojster.core.settings import ServiceSettings
from ojster.jobs.bulk import Action
from ojster.jobs.checkpoints import NewCheckpoint
from ojster.jobs.claim_policy import Claim
from ojster.jobs.failure import Failure
from ojster.jobs.filter_walk import JobFilter
from ojster.jobs.interventions import Adjustment, DeadLetterRetry
from ojster.jobs.messages import Acknowledgement, FailureReport, Holder, Progress, Release
from ojster.jobs.scope import ANYONE, Caller, Scope
from ojster.service import Service
from ojster.storage.database import Database
from tests.cheap import HASH_COST
from tests.conftest import Bench, request

CONTRIBUTOR = frozenset({Operation.ENQUEUE, Operation.CANCEL, Operation.INSPECT})
OWNER = CONTRIBUTOR | {Operation.ADMIN, Operation.CODE}


def token(*grants: Grant, **more: Any) -> Token:
    return Token("id", "ada", hash_secret("id", "secret"), grants, 0, **more)


# Tokens


def test_a_grant_covers_its_workspace_and_those_below() -> None:
    assert Grant(Role.VIEWER).covers("anything")
    grant = Grant(Role.VIEWER, "acme")
    assert (grant.covers("acme"), grant.covers("acme:web"), grant.covers("acmex"), grant.covers("")) == (
        True, True, False, False,
    )  # fmt: skip


def test_the_operations_of_a_token_are_those_of_all_its_grants() -> None:
    both = token(Grant(Role.VIEWER), Grant(Role.PRODUCER, "acme"))
    assert both.operations("acme") == {Operation.INSPECT, Operation.ENQUEUE}
    assert both.operations("beta") == {Operation.INSPECT}
    assert both.operations(None) == {Operation.INSPECT}
    assert token(Grant(Role.PRODUCER, "acme")).operations(None) == frozenset()


def test_a_token_knows_where_it_is_valid() -> None:
    here, everywhere = token(Grant(Role.VIEWER, "acme"), Grant(Role.PRODUCER, "acme")), token(Grant(Role.VIEWER))
    two = token(Grant(Role.VIEWER, "acme"), Grant(Role.VIEWER, "beta"))
    mixed = token(Grant(Role.VIEWER, "acme"), Grant(Role.VIEWER))
    assert [one.is_global for one in (here, everywhere, two, mixed)] == [False, True, False, True]
    assert [one.only_tenant for one in (here, everywhere, two, mixed)] == ["acme", None, None, None]


def test_a_secret_is_valid_until_its_token_expires_or_its_time_is_over() -> None:
    assert token().valid_until("secret", 5) == NO_EXPIRY_US
    assert token(expires_at=7).valid_until("secret", 5) == 7
    assert token().valid_until("other", 5) is None
    renewed = token(former_hash=hash_secret("id", "former"), former_until=6)
    assert renewed.valid_until("former", 5) == 6
    assert renewed.valid_until("former", 6) is None
    assert renewed.valid_until("other", 5) is None
    assert renewed.valid_until("secret", 5) == NO_EXPIRY_US


def test_a_token_is_joined_and_split() -> None:
    assert split_token(join_token("id", "a_secret_")) == ("id", "a_secret_")
    assert [split_token(text) for text in ("ojster_id", "other_id_secret", "")] == [None, None, None]


def test_a_hash_depends_on_the_secret_and_the_token() -> None:
    assert len(hash_secret("id", "secret")) == 32
    assert len({hash_secret("id", "secret"), hash_secret("id", "other"), hash_secret("other", "secret")}) == 3


def test_a_hash_costs_who_guesses_milliseconds() -> None:
    assert HASH_COST == 2**12  # the tests themselves hash at less cost


def test_a_grant_is_read() -> None:
    assert read_grant("viewer", "*") == Grant(Role.VIEWER)
    assert read_grant("viewer", "acme") == Grant(Role.VIEWER, "acme")
    with pytest.raises(InvalidRequest):
        read_grant("viewer", "a b")


# Access


def test_one_of_the_needed_operations_is_enough() -> None:
    access = Access("ada", frozenset({Operation.CANCEL}))
    access.need(Operation.ADMIN, Operation.CANCEL)
    assert (access.may(Operation.CANCEL), access.may(Operation.ADMIN)) == (True, False)
    with pytest.raises(Forbidden) as refused:
        access.need(Operation.ADMIN, Operation.INSPECT)
    assert refused.value.message == (
        "The token 'ada' has no role that allows 'admin' or 'inspect' here. Use a token that has one."
    )
    with pytest.raises(Forbidden, match="no role that allows 'admin' here"):
        access.need(Operation.ADMIN)


def test_a_queue_is_allowed_by_its_name_or_by_a_prefix() -> None:
    Access("ada", frozenset()).check_queue("anything")
    access = Access("ada", frozenset(), ("mail", "web.*"))
    for queue in ("mail", "web.", "web.a"):
        access.check_queue(queue)
    for queue in ("mail.a", "web", "other"):
        with pytest.raises(Forbidden, match=f"limited to the queues mail, web.\\*, not '{queue}'"):
            access.check_queue(queue)
    with pytest.raises(Forbidden, match="A cron job needs a token for all queues; 'ada' is limited to mail"):
        access.need_all_queues("A cron job")
    Access("ada", frozenset()).need_all_queues("A cron job")


def test_a_pattern_covers_what_it_matches() -> None:
    for pattern, other in (("a", "a"), ("a*", "a"), ("a*", "ab"), ("a*", "ab*"), ("a*", "a*"), ("*", "b*")):
        assert covers(pattern, other), (pattern, other)
    for pattern, other in (("a", "ab"), ("a", "a*"), ("ab*", "a*"), ("a*", "b")):
        assert not covers(pattern, other), (pattern, other)


# Scopes


def limited(*queues: str, operations: frozenset[Operation] = OWNER, tenant: str | None = None) -> Caller:
    return Caller(tenant, Access("ada", operations, queues))


def test_a_scope_knows_its_caller(database: Database) -> None:
    free, acme, nobody = Scope(database), Scope(database, Caller("acme")), Scope(database, Caller(""))
    assert (free.caller, free.who, free.is_limited) == (ANYONE, None, False)
    assert [one.sees("acme") for one in (free, acme, nobody)] == [True, True, False]
    assert [one.sees("") for one in (free, acme, nobody)] == [True, False, True]
    assert (acme.is_limited, nobody.is_limited) == (True, True)
    assert (free.named("q"), nobody.named("q")) == ("q", "q")
    assert acme.named("q") != "q"
    assert Scope(database, limited()).who == "ada"
    assert (Scope(database, limited()).is_limited, Scope(database, limited("q")).is_limited) == (False, True)


def test_what_concerns_all_tenants_is_for_callers_without_one(database: Database) -> None:
    Scope(database).require_all_tenants("It")
    for tenant in ("acme", ""):
        with pytest.raises(Forbidden, match="It concerns all tenants"):
            Scope(database, Caller(tenant)).require_all_tenants("It")


OF_THE_SYSTEM: dict[str, Callable[[Service], Awaitable[object]]] = {
    "attention": lambda service: service.insight.attention(),
    "statistics": lambda service: service.insight.statistics(),
    "history": lambda service: service.insight.history(),
    "configuration": lambda service: service.insight.configuration(),
    "mode": lambda service: service.maintenance.mode(),
    "maintenance": lambda service: service.maintenance.switch_mode(True),
    "end of maintenance": lambda service: service.maintenance.switch_mode(False),
    "prune": lambda service: service.maintenance.prune(),
    "unserved queues": lambda service: service.queues.unserved(),
}


@pytest.mark.anyio
@pytest.mark.parametrize("call", OF_THE_SYSTEM.values(), ids=OF_THE_SYSTEM.keys())
async def test_calls_about_the_system_are_not_for_tenants_in_the_process_either(
    service: Service, call: Callable[[Service], Awaitable[object]]
) -> None:
    with pytest.raises(Forbidden, match=r"concerns? all tenants"):
        await call(service.as_(Caller("acme")))
    assert await service.maintenance.mode() is None


@pytest.mark.anyio
async def test_maintenance_mode_stops_all_queues_and_is_not_for_tokens_of_some(service: Service) -> None:
    with pytest.raises(Forbidden):
        await service.as_(limited("mine")).maintenance.switch_mode(True)
    assert await service.maintenance.mode() is None


def test_a_caller_with_some_queues_names_one_of_them(database: Database) -> None:
    for free in (Scope(database), Scope(database, limited())):
        free.check_queue(None)
        free.check_queue("anything")
        free.need_all_queues("It")
    bound = Scope(database, limited("mail", "web"))
    bound.check_queue("mail")
    with pytest.raises(Forbidden, match="The token 'ada' is limited to the queues mail, web"):
        bound.check_queue(None)
    with pytest.raises(Forbidden, match="not 'other'"):
        bound.check_queue("other")
    with pytest.raises(Forbidden, match="It needs a token for all queues"):
        bound.need_all_queues("It")


def test_the_worker_of_a_message_is_that_of_the_tenant(database: Database) -> None:
    acme = Scope(database, Caller("acme"))
    assert acme.with_worker(Release("j", "w")).worker_id == acme.named("w")
    assert acme.with_worker(Release("j")).worker_id is None
    assert acme.holder(None) is None
    assert acme.holder(Holder("j", "w", 1)) == Holder("j", acme.named("w"), 1)
    assert Scope(database).with_worker(Release("j", "w")) == Release("j", "w")


def test_only_who_may_push_code_pushes_jobs_that_carry_it(database: Database) -> None:
    code = b'{"type":"a","args":[],"ojster_code":{"body":"def body(job): pass"}}'
    members = msgspec.json.decode(code, type=dict[str, msgspec.Raw])
    for may in (Scope(database), Scope(database, limited())):
        may.check_contents(code, members)
    may_not = Scope(database, limited(operations=CONTRIBUTOR))
    may_not.check_contents(b'{"type":"a","args":[]}')
    for one in (code, members):
        with pytest.raises(Forbidden, match="The token 'ada' may not push jobs that carry code"):
            may_not.check_contents(b'{"type":"a","args":[]}', one)


@pytest.mark.anyio
async def test_jobs_of_others_are_not_found_and_those_of_other_queues_refused(bench: Bench) -> None:
    mine = await bench.push(queue="mail", meta={"tenant_id": "acme"})
    other = await bench.push(queue="other", meta={"tenant_id": "acme"})
    foreign = await bench.push(queue="mail", meta={"tenant_id": "beta"})
    ids = [mine.id, other.id, foreign.id, "nowhere"]

    async def kinds(caller: Caller) -> list[Any]:
        found = await Scope(bench.service.database, caller).check_jobs(ids)
        return [None if one is None else type(one) for one in found]

    assert await kinds(ANYONE) == [None] * 4
    assert await kinds(limited()) == [None] * 4
    assert await kinds(Caller("acme")) == [None, None, NotFound, NotFound]
    assert await kinds(limited("mail")) == [None, Forbidden, None, NotFound]
    assert await kinds(limited("mail", tenant="acme")) == [None, Forbidden, NotFound, NotFound]
    assert await Scope(bench.service.database, Caller("acme")).check_jobs([]) == []


OWN = ServiceSettings(contributors_cancel="own")


@pytest.mark.anyio
@pytest.mark.parametrize("engine_settings", [OWN], ids=["own"])
async def test_a_contributor_cancels_only_what_it_has_created(bench: Bench) -> None:
    ada = bench.service.as_(Caller(None, Access("ada", CONTRIBUTOR)))
    bob = bench.service.as_(Caller(None, Access("bob", CONTRIBUTOR)))
    owner = bench.service.as_(Caller(None, Access("eve", OWNER)))
    ids = []
    for service in (ada, bob, bench.service):
        (pushed,) = await service.jobs.enqueue([request()])
        ids.append(pushed.job.id)
    assert (ada.scope.cancels_only_own, owner.scope.cancels_only_own, bench.service.scope.cancels_only_own) == (
        True, False, False,
    )  # fmt: skip
    refusals = await ada.scope.refuse_cancellation([*ids, "nowhere"])
    assert refusals[ids[0]] is None
    assert "created by 'bob'; 'ada' may cancel or hold only its own" in str(refusals[ids[1]])
    assert "created by nobody with a token" in str(refusals[ids[2]])
    assert refusals["nowhere"] is None
    assert await owner.scope.refuse_cancellation(ids) == dict.fromkeys(ids)
    with pytest.raises(Forbidden, match="only an owner may cancel by a filter"):
        await ada.bulk.sweep(Action.CANCEL, JobFilter(type="*"))
    with pytest.raises(Forbidden, match="may cancel or hold only its own"):
        await ada.jobs.cancel(ids[1])
    await ada.jobs.cancel(ids[0])
    await owner.jobs.cancel(ids[1])
    for service in (ada, owner):
        with pytest.raises(NotFound):
            await service.jobs.cancel("nowhere")


# Calls


FAILURE = Failure("X", "no")

ON_A_JOB: dict[str, Callable[[Service, Job], Awaitable[Any]]] = {
    "find": lambda service, job: service.jobs.find(job.id),
    "wait": lambda service, job: service.jobs.wait_for(job.id, 0),
    "history": lambda service, job: service.jobs.history(job.id),
    "purge history": lambda service, job: service.jobs.purge_history(job.id),
    "lineage": lambda service, job: service.jobs.lineage(job.id),
    "cancel": lambda service, job: service.jobs.cancel(job.id),
    "adjust": lambda service, job: service.jobs.adjust(Adjustment(job.id, -1)),
    "retry": lambda service, job: service.jobs.retry_dead(job.id),
    "delete": lambda service, job: service.jobs.delete_dead(job.id),
    "report": lambda service, job: service.jobs.report(Progress(job.id, 0.5, worker_id="w")),
    "save checkpoint": lambda service, job: service.jobs.save_checkpoint(NewCheckpoint(job.id, b"1", "w")),
    "find checkpoint": lambda service, job: service.jobs.find_checkpoint(job.id),
    "clear checkpoint": lambda service, job: service.jobs.clear_checkpoint(job.id),
}

REPORTS: dict[str, Callable[[Service, Job], Awaitable[list[Job | OjsterError]]]] = {
    "acknowledge": lambda service, job: service.jobs.acknowledge([Acknowledgement(job.id, None, "w")]),
    "fail": lambda service, job: service.jobs.fail([FailureReport(job.id, FAILURE, "w")]),
    "release": lambda service, job: service.jobs.release([Release(job.id, "w")]),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", ON_A_JOB)
async def test_no_call_reaches_a_job_outside_of_its_scope(bench: Bench, name: str) -> None:
    job = await bench.push(queue="mail", meta={"tenant_id": "acme"})
    with pytest.raises(NotFound, match=job.id):
        await ON_A_JOB[name](bench.service.as_(Caller("beta")), job)
    with pytest.raises(Forbidden, match="limited to the queues other, not 'mail'"):
        await ON_A_JOB[name](bench.service.as_(limited("other")), job)
    assert (await bench.find(job)).state == "available"


@pytest.mark.anyio
@pytest.mark.parametrize("name", REPORTS)
async def test_no_report_reaches_a_job_outside_of_its_scope(bench: Bench, name: str) -> None:
    await bench.push(queue="mail", meta={"tenant_id": "acme"})
    (mine,) = await bench.service.as_(Caller("acme")).jobs.fetch(Claim(("mail",), 1, "w"))
    (refusal,) = await REPORTS[name](bench.service.as_(Caller("beta")), mine)
    assert isinstance(refusal, NotFound)
    (refusal,) = await REPORTS[name](bench.service.as_(limited("other")), mine)
    assert isinstance(refusal, Forbidden)
    assert (await bench.find(mine)).state == "active"
    (done,) = await REPORTS[name](bench.service.as_(limited("mail", tenant="acme")), mine)
    assert isinstance(done, Job)


@pytest.mark.anyio
async def test_refused_reports_keep_their_places(bench: Bench) -> None:
    for queue in ("mail", "other", "mail"):
        await bench.push(queue=queue)
    jobs = [await bench.fetch_one(queue, worker_id="w") for queue in ("mail", "other", "mail")]
    service = bench.service.as_(limited("mail"))
    done = await service.jobs.acknowledge([Acknowledgement(job.id, None, "w") for job in jobs])
    assert [type(one) for one in done] == [Job, Forbidden, Job]
    assert [one.id for one in done if isinstance(one, Job)] == [jobs[0].id, jobs[2].id]


@pytest.mark.anyio
async def test_who_does_not_administer_names_the_worker_of_a_leased_job(bench: Bench) -> None:
    worker = bench.service.as_(Caller(None, Access("ada", frozenset({Operation.DEQUEUE}))))
    owner = bench.service.as_(Caller(None, Access("eve", OWNER)))
    for _ in range(2):
        await bench.push()
    one, two = await bench.fetch(count=2, worker_id="w")
    (refused,) = await worker.jobs.acknowledge([Acknowledgement(one.id)])
    assert isinstance(refused, OjsterError)
    (done,) = await worker.jobs.acknowledge([Acknowledgement(one.id, None, "w")])
    assert isinstance(done, Job)
    (done,) = await owner.jobs.acknowledge([Acknowledgement(two.id)])
    assert isinstance(done, Job)


@pytest.mark.anyio
async def test_only_who_administers_raises_a_priority(bench: Bench) -> None:
    job = await bench.push(priority=5)
    with pytest.raises(Forbidden, match="Only a caller that administers may raise the priority"):
        await bench.service.as_(limited(operations=CONTRIBUTOR)).jobs.adjust_priority(job.id, 1)
    assert (await bench.service.as_(limited(operations=CONTRIBUTOR)).jobs.adjust_priority(job.id, -1)).priority == 4
    assert (await bench.service.as_(limited()).jobs.adjust_priority(job.id, 1)).priority == 6


@pytest.mark.anyio
async def test_a_dead_letter_moves_only_to_a_queue_of_the_caller(bench: Bench) -> None:
    retry = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
    job = await bench.push(queue="mail", retry=retry)
    await bench.fail(await bench.fetch_one("mail"))
    service = bench.service.as_(limited("mail", "web"))
    with pytest.raises(Forbidden, match="not 'other'"):
        await service.jobs.retry_dead(job.id, DeadLetterRetry(job.id, queue="other"))
    assert (await bench.find(job)).state == "discarded"
    assert (await service.jobs.retry_dead(job.id, DeadLetterRetry(job.id, queue="web"))).queue == "web"


@pytest.mark.anyio
async def test_a_dead_letter_runs_again_in_its_queue_without_further_ado(bench: Bench) -> None:
    job = await bench.push(queue="mail", retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    await bench.fail(await bench.fetch_one("mail"))
    service = bench.service.as_(limited("mail"))
    again = await service.jobs.retry_dead(job.id, DeadLetterRetry(job.id, args=[1]))
    assert (again.queue, again.state) == ("mail", "available")


@pytest.mark.anyio
async def test_what_a_caller_selects_counts_and_sweeps_lies_in_its_scope(bench: Bench) -> None:
    for queue, tenant in (("mail", "acme"), ("mail", "beta"), ("other", "acme")):
        await bench.push(queue=queue, meta={"tenant_id": tenant})
    acme, mail = bench.service.as_(Caller("acme")), bench.service.as_(limited("mail"))
    assert (await acme.jobs.select()).total == 2
    assert (await mail.jobs.select(JobFilter(queue="mail"))).total == 2
    assert await acme.jobs.count() == {"mail": {"available": 1}, "other": {"available": 1}}
    assert await acme.jobs.count("mail") == {"mail": {"available": 1}}
    assert await acme.jobs.count("none") == {}
    for call in (mail.jobs.select(), mail.jobs.count(), mail.bulk.sweep(Action.CANCEL, JobFilter(type="*"))):
        with pytest.raises(Forbidden, match="Name one of them"):
            await call
    with pytest.raises(Forbidden, match="not 'other'"):
        await mail.jobs.select(JobFilter(queue="other"))
    assert (await acme.bulk.sweep(Action.CANCEL, JobFilter(type="*"))).matched == 2
    assert (await mail.bulk.sweep(Action.CANCEL, JobFilter(queue="mail"))).matched == 1


@pytest.mark.anyio
async def test_a_caller_pushes_and_fetches_only_in_its_queues(bench: Bench) -> None:
    service = bench.service.as_(limited("mail"))
    with pytest.raises(Forbidden, match="not 'other'"):
        await service.jobs.enqueue([request(queue="other")])
    (pushed,) = await service.jobs.enqueue([request(queue="mail")])
    with pytest.raises(Forbidden, match="not 'other'"):
        await service.jobs.fetch(Claim(("mail", "other"), 1))
    (job,) = await service.jobs.fetch(Claim(("mail",), 1))
    assert job.id == pushed.job.id
