"""A scene for the type of each request, with a value of each member that must change something."""

from __future__ import annotations

from typing import Any, Final

from tests.options.scenes import (
    ACTIVE,
    FETCH,
    JOB,
    OTHER,
    SHOWN,
    STEP,
    THIRD,
    UNKNOWN,
    Call,
    Scene,
    ShownBy,
    With,
    push,
    step,
    workflow,
)

LATER: Final = "2030-01-01T00:00:00Z"
LIST: Final[tuple[Call, ...]] = (("GET", "/jobs"),)
DEAD: Final[tuple[Call, ...]] = (
    push(options={"retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}}),
    FETCH,
    ("POST", "/workers/nack", {"job_id": JOB, "error": {"code": "x", "message": "m"}}),
)
TWO: Final[tuple[Call, ...]] = (push(), push(id=OTHER, type="b"))
W1: Final[tuple[Call, ...]] = (("GET", "/workflows/w1"), ("GET", "/workflows/w1/properties"))
STARTED: Final[tuple[Call, ...]] = (workflow(), FETCH)
PLAN: Final = {"name": "known", "type": "chain", "steps": [step()]}
KNOWN: Final[Call] = ("POST", "/definitions", PLAN)
FLOW: Final[tuple[Call, ...]] = (("POST", "/workflows", {"id": "w1", "type": "flow", "job": step()}), FETCH)

_HOLDER: Final[dict[str, Any]] = {"worker_id": "another", "attempt": 9}
"""The job is leased to ``w``, in its first attempt: another worker, and another attempt, are refused."""
_OF_ATTEMPT: Final[dict[str, Any]] = _HOLDER | {"started_at": LATER}
_CHANGES: Final = {"set": {"p": 1}}

ACK: Final = _OF_ATTEMPT | {
    "result": {"total": 7},
    "append": [step("b")],
    "properties": _CHANGES,
    "result_file": "unknown",
    "fetch": {"queues": ["default"]},
}
NACK: Final = _OF_ATTEMPT | {
    "error": {"code": "other", "message": "m"},
    "requeue": True,
    "delay_ms": With(5_000, {"requeue": True}),
    "properties": _CHANGES,
}
RELEASE: Final = _OF_ATTEMPT | {
    "then": "skip",
    "delay_ms": 5_000,
    "not_before": LATER,
    "again": With(True, {"then": "wait"}, after=(("POST", f"/jobs/{STEP}/activate", {"result": 1}), *W1)),
    "deadline": With(LATER, {"then": "wait"}),
    "wait_ms": With(5_000, {"then": "wait"}, after=(("advance", "6"), *W1)),
    "result": With(7, {"then": "skip"}),
    "properties": _CHANGES,
}
PROGRESS: Final = _HOLDER | {
    "progress": 0.7,
    "percentage": With(70, {"progress": None}),
    "message": "half",
    "data": {"rows": 7},
    "checkpoint": {"row": 7},
}
_RUNNING: Final[tuple[Call, ...]] = (("GET", f"/jobs/{JOB}"), ("GET", f"/jobs/{JOB}/checkpoint"), *LIST)

_OTHER_DEAD: Final[Call] = ("PATCH", f"/jobs/{JOB}", {"priority": 1})

BULK: Final = {
    "job_ids": With([OTHER]),
    "filter": With({"type": "b"}, {"job_ids": None}),
    "dry_run": With(True, {"job_ids": None, "filter": {"type": "a"}}),
    "cursor": With("0", {"job_ids": None, "filter": {"type": "a"}}),
    "mode": With("atomic", {"job_ids": [JOB, UNKNOWN]}),
    "atomicity": With("atomic", {"job_ids": [JOB, UNKNOWN]}),
    "idempotency_key": With(
        "k", before=(("POST", "/jobs/batch/cancel", {"job_ids": [OTHER], "idempotency_key": "k"}),)
    ),
}

LIMITS: Final = {
    "concurrency": 3,
    "rate": {"limit": 3, "period": "PT1M"},
    "throttle": {"limit": 3, "period": "PT1M"},
}
QUEUE: Final = {
    "concurrency": 3,
    "rate_limit": {"rate": {"limit": 3, "period": "PT1M"}},
    "throttle": {"limit": 3, "period": "PT1M"},
    "retention": {"completed": "PT1H"},
    "dead_letter": {"retention": {"max_age": "PT1H", "max_count": 3}},
    "backpressure": {"max_depth": 3},
    "ml_defaults": {"ext_ml_gpu_count": 1},
    "ml_limits": {"max_gpu_count": 1},
    "max_size": 3,
    "overflow_policy": With("drop_oldest", {"max_size": 3}),
    "allowed_job_types": ["b"],
}
_CONFIG: Final[tuple[Call, ...]] = (("GET", "/queues/q/config"),)

WORKFLOW: Final = {
    "type": With("group", {"jobs": [step()], "steps": None}),
    "definition": With("known", {"type": None, "steps": None}),
    "definition_version": With(
        1,
        {"type": None, "steps": None, "definition": "known"},
        before=(("PUT", "/definitions/known", PLAN | {"steps": [step("b")]}),),
    ),
    "target": With("t", {"type": None, "steps": None, "definition": "known"}),
    "locks": With("x", {"type": None, "steps": None, "definition": "known", "target": "t"}),
    "properties": {"p": 1},
    "id": "w2",
    "name": "nightly",
    "steps": [step("b")],
    "jobs": With([step("b")], {"type": "group", "steps": None, "jobs": [step()]}),
    "callbacks": With(
        {"on_failure": step()}, {"type": "batch", "steps": None, "jobs": [step()], "callbacks": {"on_success": step()}}
    ),
    "job": With(step("b"), {"type": "flow", "steps": None, "job": step()}),
    "options": {"queue": "other"},
    "params": {"p": 1},
    "metadata": {"m": 1},
    "timeout": With(5, after=(("advance", "6"), *W1)),
    "timeout_ms": With(5_000, after=(("advance", "6"), *W1)),
    "scheduled_at": "+PT1H",
    "expires_at": "+PT1H",
    "priority": 9,
    "on_error": step("b"),
    "on_cancel": step("b"),
    "on_lost_worker": ShownBy(
        "workflows/test_suspensions.py", "test_a_workflow_says_what_becomes_of_it_when_a_worker_is_lost"
    ),
    "failure_policy": With(
        "skip",
        {"type": "saga", "steps": [step(options={"retry": {"max_attempts": 1}}), step("b")]},
        after=(FETCH, ("POST", "/workers/nack", {"job_id": STEP, "error": {"code": "x", "message": "m"}}), *W1),
    ),
}
DEFINITION: Final = {
    "name": "other",
    "type": With("group", {"jobs": [step()], "steps": None}),
    "params_schema": {"type": "object"},
    "steps": [step("b")],
    "jobs": With([step("b")], {"type": "group", "steps": None, "jobs": [step()]}),
    "timeout": 5,
    "on_error": step("b"),
    "on_cancel": step("b"),
    "on_lost_worker": "cancel",
    "retry": {"max_attempts": 3},
}
CRON: Final = {
    "name": "other",
    "expression": "0 1 * * *",
    "cron": With("0 1 * * *", {"expression": None, "cron": "0 0 * * *"}),
    "timezone": "Asia/Tokyo",
    "overlap_policy": "allow",
    "enabled": False,
    "description": "Nightly.",
    "job_template": With({"type": "b", "args": []}, {"type": None, "job_template": step()}),
    "workflow": With(
        {"type": "chain", "steps": [step()]}, {"type": None, "workflow": {"type": "chain", "steps": [step("b")]}}
    ),
    "type": "b",
    "args": [1],
    "meta": {"m": 1},
    "options": {"queue": "other"},
    "on_conflict": With("reject", before=(("POST", "/cron", {"name": "c", "expression": "0 0 * * *", "type": "a"}),)),
}
COLLECTION: Final = {"description": "Notes.", "keep_removed": "P1D", "shared": True}
ITEM: Final = _HOLDER | {
    "name": "other",
    "data": {"x": 1},
    "category": "note",
    "replace": With(True, before=(("POST", f"/jobs/{JOB}/items", {"name": "i"}),)),
    "file": "unknown",
    "filename": With("f.txt", {"file": None}),
    "content_type": With("text/plain", {"file": None}),
}
SUBSCRIPTION: Final = {
    "url": "http://127.0.0.1:1/other",
    "events": ["job.failed"],
    "active": False,
    "filter": {"queues": ["q"]},
    "metadata": {"m": 1},
    "cloudevents": {"source_uri": "ojs://shop"},
}
FILTER: Final = {"definition": "known"}
_CONFIRMED: Final = {
    "filter": {"type": "b"},
    "confirm": False,
    "dry_run": With(True, {"confirm": False}),
}

ENDED: Final[tuple[Call, ...]] = (*STARTED, ("POST", "/workers/ack", {"job_id": STEP}))
_FORK: Final = "test_a_bulk_fork_begins_at_a_step_and_can_be_repeated"
_REACHES: Final = "test_a_broadcast_reaches_all_flows_that_wait_for_its_name_and_key"
_SAME_KEY: Final = "test_a_request_with_the_same_key_gets_the_first_answer"

SCENES: Final[dict[str, Scene]] = {
    "BatchSchema": Scene(
        ("POST", "/jobs/batch", {"jobs": [step(), step(queue="%")]}),
        {
            "jobs": [step("b")],
            "mode": "partial",
            "atomicity": "partial",
            "idempotency_key": With(
                "k", {"jobs": [step()]}, before=(("POST", "/jobs/batch", {"jobs": [step()], "idempotency_key": "k"}),)
            ),
        },
        after=LIST,
    ),
    "BulkSteeringBody": Scene(("POST", "/jobs/batch/cancel", {"job_ids": [JOB]}), BULK, TWO, LIST),
    "FetchBody": Scene(
        ("POST", "/workers/fetch", {"queues": ["default"]}),
        {
            "queues": ["other"],
            "count": 2,
            "worker_id": "w",
            "visibility_timeout_ms": With(1_000, after=(("advance", "2"), *LIST)),
            "capabilities": With(
                {"labels": {"region": "eu"}},
                {"worker_id": "w"},
                before=(push(id=THIRD, requires={"region": "eu"}, priority=9),),
            ),
            "job_types": ["b"],
            "wait_ms": ShownBy("server/test_endpoints.py", "test_a_fetch_waits_if_it_is_asked_to"),
            "strategy": With(
                "round-robin", {"queues": ["default", "second"], "count": 2}, before=(push(id=THIRD, queue="second"),)
            ),
            "weights": With(
                {"second": 1_000},
                {"queues": ["default", "second"], "count": 2},
                before=(push(id=THIRD, queue="second"),),
            ),
        },
        TWO,
        LIST,
    ),
    "AckAndFetchBody": Scene(
        ("POST", "/workers/ack", {"job_id": STEP}), ACK | {"job_id": JOB}, (*STARTED, push(type="b")), (*W1, *LIST)
    ),
    "AckJobAndFetchBody": Scene(("POST", f"/jobs/{STEP}/ack", {}), ACK, (*STARTED, push(type="b")), (*W1, *LIST)),
    "AckBatchBody": Scene(
        ("POST", "/workers/ack/batch", {"acks": [{"job_id": STEP}]}),
        {"acks": [], "fetch": ACK["fetch"]},
        (*STARTED, push(type="b")),
        (*W1, *LIST),
    ),
    "NackBody": Scene(
        ("POST", "/workers/nack", {"job_id": STEP, "error": {"code": "x", "message": "m"}}),
        NACK | {"job_id": JOB},
        STARTED,
        (*W1, *LIST),
    ),
    "NackJobBody": Scene(
        ("POST", f"/jobs/{STEP}/nack", {"error": {"code": "x", "message": "m"}}), NACK, STARTED, (*W1, *LIST)
    ),
    "NackBatchBody": Scene(
        ("POST", "/workers/nack/batch", {"nacks": [{"job_id": STEP, "error": {"code": "x", "message": "m"}}]}),
        {"nacks": []},
        STARTED,
        LIST,
    ),
    "ReleaseBody": Scene(
        ("POST", "/workers/release", {"job_id": STEP}), RELEASE | {"job_id": JOB}, STARTED, (*W1, *LIST)
    ),
    "ReleaseJobBody": Scene(("POST", f"/jobs/{STEP}/release", {}), RELEASE, STARTED, (*W1, *LIST)),
    "ReleaseBatchBody": Scene(
        ("POST", "/workers/release/batch", {"releases": [{"job_id": STEP}]}), {"releases": []}, STARTED, LIST
    ),
    "ConfirmedFilterBody": Scene(
        ("POST", "/admin/jobs/bulk/cancel", {"filter": {"type": "a"}, "confirm": True}), _CONFIRMED, TWO, LIST
    ),
    "DeadLetterRetryBody": Scene(
        ("POST", f"/dead-letter/{JOB}/retry", {}), {"override": {"queue": "other"}}, DEAD, LIST
    ),
    "DeadLettersBody": Scene(
        ("POST", "/dead-letter/retry", {"filter": {"type": "a"}, "confirm": True}),
        _CONFIRMED | {"older_than": With("PT1H", {"filter": None})},
        DEAD,
        LIST,
    ),
    "AdjustmentBody": Scene(
        ("PATCH", f"/jobs/{JOB}", {"priority": 5}),
        {"priority": 6, "priority_adjustment": With(5, {"priority": None})},
        (push(),),
        SHOWN,
    ),
    "EnqueueBody": Scene(
        ("POST", "/jobs", step()),
        {"type": "b", "args": [1], "id": "seven", "meta": {"m": 1}, "schema": "urn:x", "options": {"queue": "other"}},
    ),
    "ResultsBody": Scene(("POST", "/jobs/results", {"ids": [JOB]}), {"ids": [JOB, OTHER]}, TWO),
    "ProgressBody": Scene(("PUT", f"/jobs/{JOB}/progress", {"progress": 0.5}), PROGRESS, ACTIVE, _RUNNING),
    "WorkerProgressBody": Scene(
        ("POST", "/workers/progress", {"job_id": JOB, "progress": 0.5}), PROGRESS | {"job_id": OTHER}, ACTIVE, _RUNNING
    ),
    "CheckpointBody": Scene(("PUT", f"/jobs/{JOB}/checkpoint", {"state": 1}), _HOLDER | {"state": 2}, ACTIVE, _RUNNING),
    "ReplayCheckpointBody": Scene(
        ("POST", f"/ojs/v1/checkpoints/{JOB}", {"state": 1}),
        {"state": 2, "step_index": 3, "metadata": {"log": "[]"}},
        ACTIVE,
        (("GET", f"/ojs/v1/checkpoints/{JOB}/resume"),),
    ),
    "LogBody": Scene(
        ("POST", f"/jobs/{JOB}/logs", {"lines": []}),
        _HOLDER | {"lines": [{"at": "2026-03-15T09:30:00Z", "level": "info", "message": "a"}], "dropped": 2},
        ACTIVE,
        (("GET", f"/jobs/{JOB}/logs"),),
    ),
    "SchemaBody": Scene(
        ("POST", "/schemas", {"job_type": "a", "version": 1, "schema": {"type": "array"}}),
        {
            "job_type": "b",
            "type": With("b", {"job_type": None}),
            "version": 2,
            "uri": "urn:example:a",
            "schema": {"type": "array", "maxItems": 1},
            "args_schema": With({"type": "array", "maxItems": 1}, {"schema": None}),
            "mode": "strict",
            "compatible_with": ["1.0"],
        },
    ),
    "JobTypeBody": Scene(("PUT", "/job-types/a", {}), {"options": {"queue": "other"}, "meta": {"m": 1}}),
    "SignaturesBody": Scene(
        ("PUT", "/signatures", {"signatures": []}),
        {"signatures": [{"type": "a", "schema": {"type": "array"}, "is_flow": True}]},
        after=(("GET", "/signatures"),),
    ),
    "TenantBody": Scene(
        ("PUT", "/admin/tenants/acme", {}),
        {
            "tenant_id": "other",
            "limits": {"fairness_weight": 3.0},
            "fairness_weight": 3.0,
            "priority_boost": 3,
            "quota": "soft",
            "public": True,
            "expiration_delay": "PT1H",
        },
    ),
    "TenantLimitsBody": Scene(
        ("PUT", "/admin/tenants/acme/limits", {"max_concurrency": 2}),
        {
            "max_concurrency": 3,
            "max_enqueue_rate": {"limit": 3, "period": "PT1M"},
            "max_queue_depth": 3,
            "max_scheduled": 3,
            "max_file_bytes": 3,
            "fairness_weight": 3.0,
            "reason": "They pay.",
        },
        after=(("GET", "/events"),),
    ),
    "TokenBody": Scene(
        ("POST", "/admin/tokens", {"name": "t", "grants": [{"role": "owner"}]}),
        {"name": "other", "grants": [{"role": "viewer"}], "queues": ["q"], "expires_at": LATER},
    ),
    "TokenRotationBody": Scene(
        ("POST", "/admin/tokens/{token}/rotate", {}),
        {"grace": ShownBy("tenancy/test_access.py", "test_a_token_is_rotated_without_a_pause")},
    ),
    "SessionBody": Scene(
        ("POST", "/session", {"token": "x"}),
        {"token": ShownBy("security/test_sessions.py", "test_wrong_tokens_begin_no_session")},
    ),
    "HeartbeatBody": Scene(
        ("POST", "/workers/heartbeat", {"worker_id": "w"}),
        {
            "worker_id": "w2",
            "active_jobs": [JOB],
            "active_job_ids": With([JOB], {"active_jobs": 1}),
            "attempts": With({JOB: 9}, {"active_jobs": [JOB]}),
            "job_id": JOB,
            "visibility_timeout_ms": With(1_000, {"active_jobs": [JOB]}, after=(("advance", "2"), *LIST)),
            "state": "quiet",
            "hostname": "h",
            "pid": 7,
            "queues": ["q"],
            "labels": ["l"],
            "concurrency": 7,
            "pool": "p",
            "handlers": With(
                [{"type": "a", "versions": "2.0"}], before=(push(id=OTHER, version="1.0"),), after=(FETCH,)
            ),
            "job_types": With(["b"], before=(push(id=OTHER, type="c"),), after=(FETCH,)),
            "wait_ms": ShownBy("fleet/test_waiting_heartbeats.py", "test_heartbeats_wait_over_http"),
            "capabilities": With(
                {"labels": {"region": "eu"}}, before=(push(id=OTHER, requires={"region": "eu"}),), after=(FETCH,)
            ),
            "code_version": With("1.4.2", after=(("GET", "/admin/stats/history"),)),
        },
        ACTIVE,
        (("GET", "/workers"), ("GET", "/admin/workers"), ("GET", "/admin/workers/w"), *LIST),
    ),
    "DirectiveBody": Scene(
        ("POST", "/workers/w/directive", {"directive": "quiet"}),
        {"directive": "terminate"},
        (("POST", "/workers/heartbeat", {"worker_id": "w"}),),
    ),
    "WorkerRuleBody": Scene(
        ("PATCH", "/admin/worker-rules/w", {"enabled": True}),
        {
            "enabled": False,
            "provides": {"gpu": True},
            "allowed_types": ["a"],
            "denied_types": ["a"],
            "reason": "Broken.",
        },
    ),
    "QueueConfigBody": Scene(("PUT", "/queues/q/config", {}), QUEUE, after=_CONFIG),
    "NewQueueBody": Scene(
        ("POST", "/queues", {"name": "q"}), QUEUE | {"name": "other", "config": {"concurrency": 3}}, after=_CONFIG
    ),
    "QueueDeletionBody": Scene(
        ("DELETE", "/queues/default", {"strategy": "discard"}),
        {"strategy": "reject", "target_queue": With("other", {"strategy": "move"})},
        (push(),),
        LIST,
    ),
    "QueueLimitBody": Scene(("PUT", "/admin/queues/q/rate-limit", {}), LIMITS, after=_CONFIG),
    "PurgeBody": Scene(
        ("DELETE", "/admin/queues/default/jobs", {"states": ["completed"], "confirm": True}),
        {"states": ["cancelled"], "older_than": "PT1H", "confirm": False},
        (*ACTIVE, ("POST", "/workers/ack", {"job_id": JOB})),
        LIST,
    ),
    "RateLimitOverrideBody": Scene(
        ("PUT", "/rate-limits/k", {"concurrency": 2}),
        LIMITS | {"expires_at": LATER},
        (push(options={"rate_limit": {"key": "k", "concurrency": 1}}),),
    ),
    "PoolBody": Scene(
        ("PUT", "/admin/pools/p", {"queues": ["a", "b"]}),
        {
            "queues": ["a"],
            "name": "other",
            "concurrency": 3,
            "strategy": "strict",
            "weights": With({"a": 3}, {"strategy": "weighted"}),
            "isolated": True,
            "starvation_prevention": {"enabled": True},
        },
    ),
    "PruneBody": Scene(
        ("POST", "/admin/prune", {}), {"dry_run": True}, (*ACTIVE, ("POST", "/workers/ack", {"job_id": JOB})), LIST
    ),
    "MaintenanceBody": Scene(
        ("POST", "/admin/system/maintenance", {"enabled": True}),
        {"enabled": False, "reason": "Upgrade.", "estimated_duration": "PT1H", "duration": "PT1H"},
        after=(("GET", "/admin/system/maintenance"),),
    ),
    "AgentUsageBody": Scene(
        ("POST", f"/jobs/{JOB}/agent/usage", {"tokens": 5}),
        _HOLDER
        | {
            "tokens": 6,
            "estimated": With(3, before=(("POST", f"/jobs/{JOB}/agent/usage", {"tokens": 3, "is_estimate": True}),)),
            "is_estimate": True,
            "model": "m",
            "tool_result": {"tool": "t"},
        },
        (push(ext_agent_model="m", ext_agent_tools=[{"name": "t", "description": "d", "parameters": {}}]), FETCH),
        SHOWN,
    ),
    "WorkflowBody": Scene(
        ("POST", "/workflows", {"id": "w1", "type": "chain", "steps": [step()]}), WORKFLOW, (KNOWN,), (*W1, *LIST)
    ),
    "PropertiesBody": Scene(
        ("POST", "/workflows/w1/properties", {"set": {"p": 1}}),
        {
            "set": {"p": 2},
            "delete": ["q"],
            "expected": {"p": 9},
            "job_id": OTHER,
            "worker_id": With("another", {"job_id": STEP}),
            "attempt": With(9, {"job_id": STEP}),
        },
        (workflow(properties={"q": 1}), FETCH),
        W1,
    ),
    "ResumeBody": Scene(
        ("POST", "/workflows/w1/resume", {"result": 1}),
        {"result": 2, "error": With("no", {"result": None}), "step": With("a", before=())},
        (workflow({"type": "wait", "id": "ask", "form": {}}),),
        W1,
    ),
    "ActivationBody": Scene(
        ("POST", f"/jobs/{STEP}/activate", {"result": 1}),
        {"result": 2, "error": With("no", {"result": None})},
        (workflow(), FETCH, ("POST", "/workers/release", {"job_id": STEP, "then": "wait"})),
        W1,
    ),
    "ReviewBody": Scene(
        ("POST", "/workflows/w1/steps/review/review", {"action": "approve", "notes": "fine"}),
        {"action": "reject", "notes": "good", "author": "ada"},
        (workflow({"type": "gate", "id": "review"}),),
        W1,
    ),
    "DependenciesBody": Scene(
        ("POST", "/workflows/w1/steps/c/dependencies", {"depends_on": ["a"]}),
        {"depends_on": ["b"]},
        (workflow(step(id="a"), step(id="b"), step(id="c", manual=True), type="graph"),),
        W1,
    ),
    "JobNoteBody": Scene(
        ("POST", f"/jobs/{JOB}/info", {"note": 1}), _HOLDER | {"note": 2}, ACTIVE, (("GET", f"/jobs/{JOB}/info"),)
    ),
    "NoteBody": Scene(
        ("POST", "/workflows/w1/info", {"note": 1}), {"note": 2}, (workflow(),), (("GET", "/workflows/w1/info"),)
    ),
    "CancelWorkflowsBody": Scene(
        ("POST", "/workflows/cancel", {"filter": {"type": "chain"}}),
        {
            "filter": {"type": "group"},
            "dry_run": True,
            "idempotency_key": With(
                "k", before=(("POST", "/workflows/cancel", {"filter": {"type": "map"}, "idempotency_key": "k"}),)
            ),
            "stop_active": True,
        },
        STARTED,
        (*W1, *LIST),
    ),
    "BulkWorkflowsBody": Scene(
        ("POST", "/workflows/hold", {"filter": {"type": "chain"}}),
        {
            "filter": {"type": "group"},
            "dry_run": True,
            "idempotency_key": With(
                "k", before=(("POST", "/workflows/hold", {"filter": {"type": "map"}, "idempotency_key": "k"}),)
            ),
        },
        STARTED,
        (*W1, *LIST),
    ),
    "DefinitionBody": Scene(("POST", "/definitions", PLAN), DEFINITION),
    "TurnBody": Scene(
        ("POST", f"/jobs/{STEP}/flow", {}),
        _OF_ATTEMPT
        | {
            "records": ShownBy("flows/test_flows.py", "test_a_record_is_written_once"),
            "seen": ShownBy(
                "flows/test_flows.py", "test_what_ends_first_comes_first_again_also_where_python_has_no_order"
            ),
            "cancelled": ShownBy(
                "flows/test_flows.py", "test_a_timeout_cancels_the_job_that_the_flow_no_longer_awaits"
            ),
            "suspends": ShownBy(
                "flows/test_flows.py", "test_a_flow_that_waits_has_no_worker_and_its_deadline_does_not_move"
            ),
            "wakes_at": ShownBy(
                "flows/test_flows.py", "test_a_flow_that_waits_has_no_worker_and_its_deadline_does_not_move"
            ),
            "version": ShownBy("flows/test_flows.py", "test_a_message_that_comes_as_the_wait_for_it_ends_is_not_lost"),
            "ended": ShownBy("flows/test_flows.py", "test_a_message_that_comes_as_the_wait_for_it_ends_is_not_lost"),
            "was_cancelled": ShownBy(
                "flows/test_flows.py", "test_the_outcome_of_a_flow_that_waits_is_known_to_the_server"
            ),
            "restarts": ShownBy(
                "flows/test_restarted_flows.py",
                "test_a_flow_begins_anew_with_other_arguments_and_keeps_its_messages",
            ),
            "position": ShownBy(
                "flows/test_flow_views.py",
                "test_a_flow_that_waits_shows_for_what_and_in_which_line_of_its_code",
            ),
        },
        FLOW,
        LIST,
    ),
    "AppendBody": Scene(
        ("POST", f"/jobs/{STEP}/streams/lines", {"values": [1]}),
        _OF_ATTEMPT
        | {
            "values": [2, 3],
            "append_id": ShownBy("flows/test_streams.py", "test_chunks_are_pages_of_json"),
        },
        FLOW,
    ),
    "BroadcastBody": Scene(
        ("POST", "/broadcasts", {"name": "paid", "key": "42"}),
        {
            "name": ShownBy("flows/test_broadcasts.py", _REACHES),
            "key": ShownBy("flows/test_broadcasts.py", _REACHES),
            "data": ShownBy("flows/test_broadcasts.py", _REACHES),
            "idempotency_key": ShownBy("flows/test_broadcasts.py", "test_the_same_idempotency_key_sends_once"),
        },
    ),
    "ForkBody": Scene(
        ("POST", "/workflows/w1/fork", {"from_step": "first", "id": "w2"}),
        {"from_step": "none", "id": "w3", "args": [7], "result": 7},
        ENDED,
        LIST,
    ),
    "ForkWorkflowsBody": Scene(
        ("POST", "/workflows/fork", {"filter": {"type": "chain"}}),
        {
            "filter": ShownBy("workflows/test_workflow_bulk.py", _FORK),
            "from_step": ShownBy("workflows/test_workflow_bulk.py", _FORK),
            "dry_run": ShownBy("workflows/test_workflow_bulk.py", _FORK),
            "idempotency_key": ShownBy("workflows/test_workflow_bulk_over_http.py", _SAME_KEY),
        },
    ),
    "PinWorkflowsBody": Scene(
        ("POST", "/workflows/pin", {"filter": {"type": "flow"}, "flow": "a", "version": "2.0"}),
        {
            "filter": {"type": "chain"},
            "flow": "b",
            "version": "3.0",
            "from_version": "4.0",
            "dry_run": True,
            "idempotency_key": ShownBy("workflows/test_workflow_bulk_over_http.py", _SAME_KEY),
        },
        (("POST", "/workflows", {"id": "w1", "type": "flow", "job": step() | {"version": "1.0"}}),),
        (*W1, *LIST),
    ),
    "MessageBody": Scene(
        ("POST", "/workflows/w1/messages", {"name": "m"}),
        {
            "name": "",
            "data": ShownBy(
                "flows/test_flows.py",
                "test_messages_are_kept_before_anybody_waits_for_them_and_received_once_in_their_order",
            ),
            "step": "other",
            "idempotency_key": ShownBy("flows/test_flows.py", "test_a_message_with_a_key_is_kept_once"),
        },
        FLOW,
        (("GET", f"/jobs/{STEP}/flow"),),
    ),
    "UpdateBody": Scene(
        ("POST", "/workflows/w1/updates", {"name": "m"}),
        {
            "name": "",
            "args": ShownBy("flows/test_updates.py", "test_a_flow_answers_updates_while_it_waits"),
            "step": "other",
            "idempotency_key": With(
                "k", before=(("POST", "/workflows/w1/updates", {"name": "m", "idempotency_key": "k"}),)
            ),
            "wait_ms": ShownBy("flows/test_updates.py", "test_updates_are_typed_calls_of_a_run"),
        },
        FLOW,
        (("GET", f"/jobs/{STEP}/flow"),),
    ),
    "CollectionBody": Scene(("POST", "/collections", {"name": "c"}), COLLECTION | {"name": "other"}),
    "CollectionChangeBody": Scene(
        ("PATCH", "/collections/c", {}), COLLECTION, (("POST", "/collections", {"name": "c"}),)
    ),
    "ItemBody": Scene(("POST", f"/jobs/{JOB}/items", {"name": "i"}), ITEM, ACTIVE, (("GET", f"/jobs/{JOB}/items"),)),
    "FileBody": Scene(
        ("POST", "/files", {"size": 3}),
        {
            "size": 4,
            "sha256": "0" * 64,
            "content_type": "text/plain",
            "filename": "f.txt",
            "job_id": OTHER,
            "worker_id": With("another", {"job_id": JOB}),
            "attempt": With(9, {"job_id": JOB}),
        },
        ACTIVE,
    ),
    "CronBody": Scene(("POST", "/cron", {"name": "c", "expression": "0 0 * * *", "type": "a"}), CRON),
    "CronPatchBody": Scene(
        ("PATCH", "/cron/c", {"enabled": True}),
        {"enabled": False},
        (("POST", "/cron", {"name": "c", "expression": "0 0 * * *", "type": "a"}),),
    ),
    "BackfillBody": Scene(
        ("POST", "/cron/c/backfill", {"since": "1970-01-01T00:00:00Z", "until": "1970-01-03T00:00:00Z"}),
        {
            "since": "1970-01-02T00:00:00Z",
            "until": "1970-01-02T00:00:00Z",
            "concurrency": ShownBy("schedules/test_backfill.py", "test_as_many_run_at_once_as_the_caller_wants"),
            "dry_run": True,
        },
        (("POST", "/cron", {"name": "c", "expression": "0 0 * * *", "type": "a"}),),
    ),
    "SubscriptionBody": Scene(
        ("POST", "/webhooks/subscriptions", {"url": "http://127.0.0.1:1/", "events": ["job.completed"]}),
        SUBSCRIPTION | {"secret": "0123456789abcdef"},
    ),
    "SubscriptionPatchBody": Scene(
        ("PATCH", "/webhooks/subscriptions/{made}", {}),
        SUBSCRIPTION,
        (("POST", "/webhooks/subscriptions", {"url": "http://127.0.0.1:1/", "events": ["job.completed"]}),),
    ),
    "PushEndpointBody": Scene(
        ("PUT", "/push/endpoints/fn", {"endpoint": "http://127.0.0.1:1/"}),
        {
            "endpoint": "http://127.0.0.1:1/other",
            "job_types": ["email.send"],
            "queues": ["q"],
            "config": {"max_concurrency": 3},
        },
    ),
    "ChannelBody": Scene(
        ("PUT", "/channels/c", {"method": "email", "from": "a@b.org", "to": ["c@b.org"]}),
        {
            "method": With("webhook", {"from": None, "to": [], "url": "http://127.0.0.1:1/"}),
            "from": "x@b.org",
            "to": ["x@b.org"],
            "cc": ["x@b.org"],
            "subject": "Failed",
            "url": "http://127.0.0.1:1/",
            "secret": With(
                "0123456789abcdef", {"method": "webhook", "from": None, "to": [], "url": "http://127.0.0.1:1/"}
            ),
        },
    ),
}
"""A scene for each type of request."""

INSIDE: Final[dict[str, Scene]] = {
    "PushConfigBody": Scene(
        ("PUT", "/push/endpoints/fn", {"endpoint": "http://127.0.0.1:1/"}),
        {
            "max_concurrency": 3,
            "timeout_ms": 5_000,
            "rate": {"limit": 3, "period": "PT1M"},
            "signing_secret": "0123456789abcdef",
        },
        inside=("config", {}),
    ),
    "RateBody": Scene(
        ("PUT", "/admin/queues/q/rate-limit", {}),
        {"limit": 5, "period": "PT1H"},
        inside=("rate", {"limit": 3, "period": "PT1M"}),
    ),
    "ChangesBody": Scene(
        ("POST", "/workers/ack", {"job_id": STEP}),
        {"set": {"p": 1}, "delete": ["q"], "expected": With({"q": 9}, {"delete": ["q"]})},
        (workflow(properties={"q": 1}), FETCH),
        W1,
        inside=("properties", {}),
    ),
    "DeadLetterOverrideBody": Scene(
        ("POST", f"/dead-letter/{JOB}/retry", {}),
        {"args": [7], "queue": "other", "meta": {"m": 1}, "retry": {"max_attempts": 7}},
        DEAD,
        SHOWN,
        inside=("override", {}),
    ),
    "SignatureBody": Scene(
        ("PUT", "/signatures", {}),
        {"type": "b", "schema": {"type": "array"}, "is_flow": True},
        after=(("GET", "/signatures"),),
        inside=("signatures.0", {"type": "a", "schema": {}}),
    ),
    "HandlerBody": Scene(
        ("POST", "/workers/heartbeat", {"worker_id": "w"}),
        {"type": With("b", {"versions": "2.0"}), "versions": "2.0"},
        (push(version="1.0"),),
        (FETCH,),
        inside=("handlers.0", {"type": "a"}),
    ),
    "GrantBody": Scene(
        ("POST", "/admin/tokens", {"name": "t"}),
        {"role": "viewer", "tenant": "acme"},
        inside=("grants.0", {"role": "owner"}),
    ),
    "DeadLetterConfigBody": Scene(
        ("PUT", "/queues/q/config", {}),
        {"retention": {"max_count": 3}},
        after=_CONFIG,
        inside=("dead_letter", {"retention": {}}),
    ),
    "DeadLetterRetentionBody": Scene(
        ("PUT", "/queues/q/config", {}),
        {"max_age": "PT1H", "max_count": 3},
        after=_CONFIG,
        inside=("dead_letter.retention", {}),
    ),
    "BackpressureBody": Scene(
        ("PUT", "/queues/q/config", {}),
        {"max_depth": 5, "max_size_bytes": 5, "strategy": "drop_oldest", "warning_threshold": 0.5},
        after=_CONFIG,
        inside=("backpressure", {"max_depth": 3}),
    ),
    "ResourceLimits": Scene(
        ("PUT", "/queues/q/config", {}),
        {
            "max_gpu_count": 1,
            "max_gpu_memory_gb": 1,
            "max_memory_gb": 1,
            "max_timeout_seconds": 1,
            "allowed_gpu_types": ["nvidia-a100"],
            "allowed_priority_classes": ["spot"],
            "allowed_models": ["m"],
            "allowed_checkpoint_prefixes": ["s3://b/"],
            "max_concurrent_gpu_jobs": 1,
            "max_total_gpus": 1,
        },
        after=_CONFIG,
        inside=("ml_limits", {}),
    ),
    "QueueWeightBody": Scene(
        ("PUT", "/admin/pools/p", {"strategy": "weighted"}), {"weight": 3}, inside=("queues.a", {})
    ),
    "StarvationPreventionBody": Scene(
        ("PUT", "/admin/pools/p", {"queues": ["a"]}),
        {
            "enabled": False,
            "rotation_interval": "PT1M",
            "min_dispatch_ratio": 0.5,
        },
        inside=("starvation_prevention", {"enabled": True}),
    ),
    "JobTemplateBody": Scene(
        ("POST", "/cron", {"name": "c", "expression": "0 0 * * *"}),
        {"type": "b", "args": [1], "meta": {"m": 1}, "options": {"queue": "other"}},
        inside=("job_template", {"type": "a"}),
    ),
    "CloudEventsForm": Scene(
        ("POST", "/webhooks/subscriptions", {"url": "http://127.0.0.1:1/", "events": ["job.completed"]}),
        {"source_uri": "ojs://other", "content_mode": "binary", "type_prefix": "org.example."},
        inside=("cloudevents", {"source_uri": "ojs://shop"}),
    ),
    "EventFilterBody": Scene(
        ("POST", "/webhooks/subscriptions", {"url": "http://127.0.0.1:1/", "events": ["job.completed"]}),
        {"queues": ["q"], "job_types": ["a"]},
        inside=("filter", {}),
    ),
}
"""A scene for each type of object inside requests, with the place of the object."""

TRIED_ELSEWHERE: Final = {
    "OptionsBody": "jobs/test_every_member.py",
    "RetryPolicyBody": "jobs/test_every_member.py",
    "UniquePolicyBody": "jobs/test_every_member.py",
    "RateLimitBody": "jobs/test_every_member.py",
    "AckBody": "AckAndFetchBody",
    "NewRecord": "flows/test_flows.py",
    "FlowPosition": "flows/test_flow_views.py",
    "FlowWait": "flows/test_flow_views.py",
    "Seen": "flows/test_flows.py",
    "LogLineBody": "jobs/test_logs.py",
}
"""Types of objects inside requests whose members another test tries, or another scene."""

RELEASED: Final = "ReleaseJobBody"
_MEANS_LITTLE: Final = {"queues": ["default"], "worker_id": "w", "capabilities": {"region": "eu"}}
_MISSPELT: Final = {"queues": ["default"], "job_typs": ["a"]}

COMBINATIONS: Final[list[tuple[str, dict[str, Any]]]] = [
    (RELEASED, {"then": "wait", "delay_ms": 5}),
    (RELEASED, {"then": "skip", "not_before": LATER}),
    (RELEASED, {"then": "queue", "again": True}),
    (RELEASED, {"then": "queue", "deadline": LATER}),
    (RELEASED, {"then": "queue", "wait_ms": 5}),
    (RELEASED, {"then": "queue", "result": 7}),
    (RELEASED, {"then": "queue", "not_before": LATER, "delay_ms": 5}),
    (RELEASED, {"then": "wait", "wait_ms": 5, "deadline": LATER}),
    ("ReleaseBatchBody", {"releases": [{"job_id": STEP, "result": 7}]}),
    ("NackBody", {"delay_ms": 5}),
    ("NackJobBody", {"requeue": True}),
    ("NackBatchBody", {"nacks": [{"job_id": STEP, "error": {"code": "x", "message": "m"}, "delay_ms": 5}]}),
    ("FetchBody", {"strategy": "strict", "weights": {"default": 3}}),
    *(("AckBatchBody", {"acks": [{"job_id": STEP, name: 1}]}) for name in ("attemptt", "reslt", "worker_idd")),
    ("AckBatchBody", {"acks": [{"job_id": STEP, "properties": {"delet": ["p"]}}]}),
    ("NackBatchBody", {"nacks": [{"job_id": STEP, "error": {"code": "x", "message": "m"}, "delay_sm": 5}]}),
    ("ReleaseBatchBody", {"releases": [{"job_id": STEP}, {"job_id": STEP, "thn": "skip"}]}),
    ("AckAndFetchBody", {"properties": {"expectd": {"p": 1}}}),
    ("HeartbeatBody", {"handlers": [{"type": "a", "version": "2.0"}]}),
    ("AckAndFetchBody", {"fetch": {"queues": ["default"], "strategy": "strict", "weights": {"default": 3}}}),
    ("AckBatchBody", {"fetch": {"queues": ["default"], "strategy": "strict", "weights": {"default": 3}}}),
    ("FetchBody", {"worker_id": "w", "capabilities": {"region": "eu"}}),
    ("HeartbeatBody", {"capabilities": {"gpu": {"memry_gb": 5}}}),
    *((kind, {"fetch": _MEANS_LITTLE}) for kind in ("AckAndFetchBody", "AckJobAndFetchBody", "AckBatchBody")),
    *((kind, {"fetch": _MISSPELT}) for kind in ("AckAndFetchBody", "AckJobAndFetchBody", "AckBatchBody")),
    ("ProgressBody", {"progress": 0.1, "percentage": 20}),
    ("PoolBody", {"strategy": "strict", "weights": {"a": 3}}),
    ("MaintenanceBody", {"enabled": False, "reason": "Over."}),
    ("MaintenanceBody", {"estimated_duration": "PT1H", "duration": "PT2H"}),
    ("QueueConfigBody", {"overflow_policy": "block"}),
    ("QueueConfigBody", {"max_size": 3, "backpressure": {"max_depth": 4}}),
    ("QueueConfigBody", {"backpressure": {"strategy": "block"}}),
    ("QueueConfigBody", {"backpressure": {"max_depth": 4, "strategy": "drop_oldest"}, "overflow_policy": "reject"}),
    ("QueueConfigBody", {"concurrency": 3, "rate_limit": {"concurrency": 4}}),
    ("NewQueueBody", {"config": {"max_size": 3, "overflow_policy": "block"}, "overflow_policy": "reject"}),
    ("NewQueueBody", {"config": {"backpressure": {"max_depth": 4, "strategy": "block"}}, "overflow_policy": "reject"}),
    ("NewQueueBody", {"config": {"concurrency": 3}, "max_size": 3}),
    ("NewQueueBody", {"config": {"overflow_policy": "block"}}),
    ("SchemaBody", {"job_type": "a", "type": "b"}),
    ("SchemaBody", {"schema": {}, "args_schema": {"type": "array"}}),
    ("ChannelBody", {"secret": "0123456789abcdef"}),
    ("ItemBody", {"filename": "f.txt"}),
    ("ItemBody", {"content_type": "text/plain"}),
    ("CronBody", {"expression": "0 0 * * *", "cron": "0 1 * * *"}),
    ("CronBody", {"job_template": {"type": "b"}}),
    ("CronBody", {"type": None, "job_template": {"type": "a"}, "queue": "other"}),
    ("CronBody", {"type": None, "workflow": {"type": "chain", "steps": [step()]}, "priority": 5}),
    ("CronBody", {"type": None, "workflow": {"type": "chain", "steps": [step()]}, "colour": "red"}),
    ("CronBody", {"status": "disabled"}),
    ("CronBody", {"enabled": False, "status": "active"}),
    ("CronBody", {"tenant_id": "other"}),
    ("CronBody", {"created_by": "ada"}),
    ("CronBody", {"created_at": LATER}),
    ("CronBody", {"starts": "another job"}),
    ("CronBody", {"type": None, "job_template": step(), "status": "paused"}),
    ("BatchSchema", {"mode": "partial", "atomicity": "atomic"}),
    ("BulkSteeringBody", {"job_ids": [JOB], "filter": {"type": "a"}}),
    ("BulkSteeringBody", {"job_ids": [JOB], "cursor": "0"}),
    ("BulkSteeringBody", {"filter": {"type": "a"}, "cursor": "0", "dry_run": True}),
    ("ActivationBody", {"result": 1, "error": "no"}),
    ("AdjustmentBody", {"priority": 1, "priority_adjustment": 1}),
    ("QueueDeletionBody", {"strategy": "discard", "target_queue": "other"}),
    ("TenantBody", {"tenant_id": "other"}),
    ("SubscriptionPatchBody", {"secret": "0123456789abcdef"}),
    ("SubscriptionPatchBody", {"filter": {"tenants": ["acme"]}}),
    ("RateLimitOverrideBody", {"on_limit": "drop"}),
    ("BulkSteeringBody", {"filter": {"type": "a"}, "limit": 3}),
    ("SchemaBody", {"compatible_with": ["2"], "title": "A"}),
    ("BatchSchema", {"jobs": [step()], "queue": "other"}),
    ("TenantBody", {"fairness_weight": 3, "limits": {"fairness_weight": 2}}),
]
"""Members that a request cannot have together: it is refused, or brings a warning."""

_WORKFLOW: Final = {"type": "chain", "steps": [step()]}
_ARRAY: Final = {"type": "array", "maxItems": 1}

SAY_THE_SAME: Final[list[tuple[str, dict[str, Any], dict[str, Any]]]] = [
    ("QueueConfigBody", {"max_size": None}, {"backpressure": None}),
    ("QueueConfigBody", {"max_size": 10}, {"backpressure": {"max_depth": 10}}),
    ("QueueConfigBody", {"max_size": 10}, {"backpressure": None}),
    ("QueueConfigBody", {"max_size": 10}, {"backpressure": {"max_depth": 0}}),
    ("QueueConfigBody", {"backpressure": {"max_depth": 10}}, {"max_size": None}),
    ("QueueConfigBody", {"backpressure": {"max_depth": 10, "strategy": "block"}}, {"overflow_policy": "block"}),
    ("QueueConfigBody", {"backpressure": {"max_depth": 10}}, {"overflow_policy": "reject"}),
    ("QueueConfigBody", {"max_size": 10, "overflow_policy": "block"}, {"backpressure": {"max_depth": 10}}),
    ("QueueConfigBody", {"rate_limit": {"concurrency": 5}}, {"concurrency": 5}),
    ("QueueConfigBody", {"rate_limit": {"concurrency": 5}}, {"concurrency": None}),
    ("NewQueueBody", {}, {"overflow_policy": "reject"}),
    ("NewQueueBody", {"config": {"concurrency": 5}}, {"concurrency": 5}),
    ("NewQueueBody", {"config": {"concurrency": 5}}, {"concurrency": None}),
    ("NewQueueBody", {"config": {"concurrency": 5}}, {"retention": {}}),
    ("NewQueueBody", {"config": {"concurrency": 5}}, {"overflow_policy": "reject"}),
    ("CronBody", {"type": None, "job_template": step(args=[1], meta={"m": 1})}, {"args": [], "meta": {}}),
    ("CronBody", {"type": None, "job_template": step(args=[1])}, {"args": [1.0], "options": None}),
    ("CronBody", {"type": None, "workflow": _WORKFLOW}, {"args": [], "options": {}}),
    ("CronBody", {}, {"status": "active", "tenant_id": None}),
    ("CronBody", {"enabled": False}, {"status": "disabled", "run_count": 0}),
    ("MaintenanceBody", {"enabled": False}, {"reason": ""}),
    ("MaintenanceBody", {"enabled": True, "estimated_duration": "PT1H"}, {"duration": "PT60M"}),
    ("SchemaBody", {"schema": _ARRAY}, {"args_schema": {"maxItems": 1, "type": "array"}}),
    ("SchemaBody", {"schema": _ARRAY}, {"args_schema": None}),
    ("SchemaBody", {"schema": None, "args_schema": _ARRAY}, {"type": None}),
    (RELEASED, {"then": "queue"}, {"result": None}),
    ("TenantBody", {"limits": {"fairness_weight": 3}}, {"fairness_weight": 3.0}),
    ("TenantBody", {"limits": {"fairness_weight": 3}}, {"fairness_weight": None}),
    (RELEASED, {"then": "queue"}, {"deadline": None, "again": False, "wait_ms": 0}),
]
"""Requests, and members that say nothing else beside theirs: ``null``, default values, and the same in other words."""
