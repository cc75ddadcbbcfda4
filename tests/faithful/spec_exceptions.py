"""Rules of the specification's OpenAPI file and JSON Schemas that answers may break, and why.

A key is the name of a rule, or a rule and a place, joined by `` in ``; ``*`` stands for anything.
"""

from __future__ import annotations

from typing import Final

STATUSES = "ojs-http-binding 16.2 gives every endpoint this status; openapi.yaml repeats it for a few"
ACCESS = "ojs-security 15 and ojs-http-binding 5.2: a server that requires tokens answers so on every endpoint"
ADDED = "ojs-http-binding 3.3: new response fields may be added; the schema forbids them"
BULK = "a batch with a mode answers as ojs-bulk-operations 5.3 requires"
ERRORS = "ojs-http-binding 16.1, which requires request_id, and the conformance suite, which requires docs_url and hint"
TENANT_ERROR = "ojs-multi-tenancy 8.2: an exceeded limit is described in the error itself"
TIMEOUT_ERROR = "ojs-timeouts 8: an error of a timeout has these members"
JOB_ERROR = "the conformance suite requires occurred_at, and job.json has code, attempt and occurred_at in errors"
LOWER_CASE = "ojs-http-binding 16.3 and the conformance suite have lower-case codes"
MORE_CODES = "a code of ojs-errors 4 or of an extension; openapi.yaml has a few codes only"
HTTP_CODES = "a code of ojs-http-binding 16.3; openapi.yaml has a few codes only"
MORE_EVENTS = "an event of an extension, which its own document defines"
OWN_EVENTS = "an event of Ojster that no document defines"
SUITE = "the conformance suite requires it"
CREATOR = "the creator's metadata is kept beside that of the server"
OWN_CONTAINERS = "Ojster has more kinds and states of workflows"
OMITTED = "lists omit the steps, and clients can"
AS_SENT = "the policy is shown as it was sent; official SDKs send this form"
CRON = "openapi.yaml has expression and job_template, cron.json has cron and type: an answer has both"
ADMIN_LIST = "the admin API answers {items, pagination} (ojs-admin-api 6, 8)"

SUMMARY = "ojs-http-binding 10.2 and 10.3: a report is answered without its job; its worker has the arguments"
OWN_CODES = "ojs-http-binding 16.3: codes of an implementation begin with x_"
CANCEL_PREVIOUS = "ojs-cron 6 has cancel_previous, openapi.yaml has cancel: both are taken, and the first is shown"
HANDED_BACK = "a job that its worker has no handler for is handed back, and waits"
EXCEPTIONS: Final[dict[str, str]] = {
    "undeclared status 400": STATUSES,
    "undeclared status 401": ACCESS,
    "undeclared status 403": ACCESS,
    "undeclared status 404": STATUSES,
    "undeclared status 409": STATUSES,
    "undeclared status 413": "ojs-payload-limits and ojs-errors 5.1 give every request with a body this status",
    "undeclared status 422": STATUSES,
    "undeclared status 429": STATUSES,
    "undeclared status 503": STATUSES,
    "undeclared status 200 in POST /ojs/v1/jobs/batch *": BULK,
    "undeclared status 207 in POST /ojs/v1/jobs/batch *": BULK,
    "undeclared status 200 in POST /ojs/v1/cron *": "ojs-cron 8.1: a registration is updated",
    "content type application/openjobspec+json in * /ojs/v1/admin/*": "ojs-http-binding 4.1 requires it of all answers",
    "openapi.yaml#/components/schemas/ErrorResponse/required:error in POST /ojs/v1/jobs/batch 422": BULK,
    "openapi.yaml#/components/schemas/HealthResponse/properties/backend/properties/status/enum:*": SUITE,
    "openapi.yaml#/components/schemas/CronJob/properties/last_run_at/type": "ojs-cron 2.2: null if it never ran",
    "openapi.yaml#/components/schemas/CronJob/properties/next_run_at/type": "ojs-cron 8.5: null if it is disabled",
    "openapi.yaml#/components/schemas/Job/properties/parent_results/type": "ojs-workflows 7.1: an object by step",
    "openapi.yaml#/components/schemas/Manifest/properties/extensions/type": "ojs-http-binding 21.2: a list of names",
    "openapi.yaml#/components/schemas/UniquePolicy/properties/on_conflict/enum:ignore": "ojs-unique-jobs has it",
    "openapi.yaml#/components/schemas/Workflow/properties/id/format": "ojs-workflows shows ids such as wf_1",
    "openapi.yaml#/components/schemas/Workflow/properties/state/enum:pending": "ojs-workflows 8.1 has the state",
    "openapi.yaml#/components/schemas/Workflow/properties/state/enum:running": "ojs-http-binding 14 has the state",
    "openapi.yaml#/components/schemas/Workflow/properties/state/enum:cancelling": OWN_CONTAINERS,
    "openapi.yaml#/components/schemas/Workflow/properties/state/enum:compensat*": OWN_CONTAINERS,
    "openapi.yaml#/components/schemas/Workflow/properties/state/enum:retried": OWN_CONTAINERS,
    "openapi.yaml#/components/schemas/Workflow/properties/type/enum:*": OWN_CONTAINERS,
    "openapi.yaml#/paths/~1ojs~1v1~1admin~1queues/get/responses/200/*/schema/type": ADMIN_LIST,
    "openapi.yaml#/paths/~1ojs~1v1~1admin~1workers/get/responses/200/*/schema/type": ADMIN_LIST,
    "openapi.yaml#/components/schemas/NackResponse/properties/state/enum:available": "`requeue` hands it back",
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:AGENT_*": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:QUEUE_FULL": SUITE,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:RESULT_TOO_LARGE": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:EXTENSION_NOT_SUPPORTED": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:TENANT_LIMIT_EXCEEDED": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:backend_unavailable": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:batch_size_exceeded": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:invalid_payload": HTTP_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:invalid_workflow": "ojs-workflows 11.1 requires it",
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:payload_too_large": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:rate_limited": HTTP_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:token_expired": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:unauthenticated": MORE_CODES,
    "api-error.json#/properties/code/enum:*": LOWER_CASE,
    "api-error.json#/additionalProperties:docs_url": ERRORS,
    "api-error.json#/additionalProperties:hint": ERRORS,
    "api-error.json#/additionalProperties:request_id": ERRORS,
    "api-error.json#/additionalProperties:type": SUITE,
    "api-error.json#/additionalProperties:current": TENANT_ERROR,
    "api-error.json#/additionalProperties:limit": TENANT_ERROR,
    "api-error.json#/additionalProperties:maximum": TENANT_ERROR,
    "api-error.json#/additionalProperties:tenant_id": TENANT_ERROR,
    "cron.json#/additionalProperties:created_by": ADDED,
    "cron.json#/additionalProperties:expression": CRON,
    "cron.json#/additionalProperties:job_template": CRON,
    "cron.json#/additionalProperties:starts": ADDED,
    "cron.json#/additionalProperties:tenant_id": ADDED,
    "cron.json#/additionalProperties:workflow": ADDED,
    "cron.json#/required:type": "one that starts workflows has no job, and so no type",
    "cron.json#/properties/description/type": "ojs-cron 2.2: null by default",
    "error.json#/additionalProperties:attempt": JOB_ERROR,
    "error.json#/additionalProperties:code": JOB_ERROR,
    "error.json#/additionalProperties:details": JOB_ERROR,
    "error.json#/additionalProperties:occurred_at": JOB_ERROR,
    "error.json#/additionalProperties:timeout_kind": TIMEOUT_ERROR,
    "error.json#/additionalProperties:limit_seconds": TIMEOUT_ERROR,
    "error.json#/additionalProperties:elapsed_seconds": TIMEOUT_ERROR,
    "error.json#/additionalProperties:timestamp": "ojs-retry 10.1 has timestamp",
    "event.json#/properties/type/enum:backpressure.*": MORE_EVENTS,
    "event.json#/properties/type/enum:batch.*": OWN_EVENTS,
    "event.json#/properties/type/enum:bulk.*": MORE_EVENTS,
    "event.json#/properties/type/enum:collection.*": OWN_EVENTS,
    "event.json#/properties/type/enum:dead_letter.*": MORE_EVENTS,
    "event.json#/properties/type/enum:definition.*": OWN_EVENTS,
    "event.json#/properties/type/enum:job.adjusted": OWN_EVENTS,
    "event.json#/properties/type/enum:job.checkpointed": MORE_EVENTS,
    "event.json#/properties/type/enum:job.noted": OWN_EVENTS,
    "event.json#/properties/type/enum:job.pending": OWN_EVENTS,
    "event.json#/properties/type/enum:job.reaction_failed": OWN_EVENTS,
    "event.json#/properties/type/enum:job.resumed": OWN_EVENTS,
    "event.json#/properties/type/enum:job.skipped": OWN_EVENTS,
    "event.json#/properties/type/enum:notification.*": OWN_EVENTS,
    "event.json#/properties/type/enum:queue.configured": OWN_EVENTS,
    "event.json#/properties/type/enum:queue.deleted": OWN_EVENTS,
    "event.json#/properties/type/enum:push.*": OWN_EVENTS,
    "event.json#/properties/type/enum:rate_limit.*": MORE_EVENTS,
    "event.json#/properties/type/enum:scheduling.*": MORE_EVENTS,
    "event.json#/properties/type/enum:schema.registered": OWN_EVENTS,
    "event.json#/properties/type/enum:tenant.*": MORE_EVENTS,
    "event.json#/properties/type/enum:token.*": OWN_EVENTS,
    "event.json#/properties/type/enum:webhook.*": MORE_EVENTS,
    "event.json#/properties/type/enum:worker.disabled": OWN_EVENTS,
    "event.json#/properties/type/enum:workflow.*": "ojs-workflows has more events, and Ojster those of its own kinds",
    "http/batch-enqueue-response.json#/additionalProperties:warnings": ADDED,
    "http/enqueue-response.json#/additionalProperties:warnings": ADDED,
    "http/enqueue-response.json#/properties/job/properties/id/pattern": "ojs-core 13.6 has ids of other variants",
    "job.json#/properties/id/pattern": "ojs-core 13.6 has ids of other variants",
    "http/heartbeat-response.json#/additionalProperties:acknowledged": SUITE,
    "http/heartbeat-response.json#/additionalProperties:heartbeat_timeout_ms": ADDED,
    "http/heartbeat-response.json#/additionalProperties:jobs_cancelled": ADDED,
    "http/heartbeat-response.json#/additionalProperties:jobs_lost": ADDED,
    "http/heartbeat-response.json#/additionalProperties:woken": ADDED,
    "progress.json#/definitions/progressResponse/additionalProperties:message": SUITE,
    "queue-stats.json#/properties/queue/type": "openapi.yaml and the conformance suite have an object",
    "retry-policy.json#/additionalProperties:backoff_strategy": "openapi.yaml and the conformance suite have it",
    "retry-policy.json#/properties/*_interval/pattern": AS_SENT,
    "unique-policy.json#/additionalProperties:key": AS_SENT,
    "unique-policy.json#/additionalProperties:period_ms": AS_SENT,
    "unique-policy.json#/additionalProperties:within": AS_SENT,
    "unique-policy.json#/then/required:meta_keys": "its condition holds for policies without keys too",
    "webhook.json#/definitions/webhookSubscription/additionalProperties:cloudevents": ADDED,
    "webhook.json#/definitions/webhookSubscription/additionalProperties:failing": ADDED,
    "webhook.json#/definitions/webhookSubscription/additionalProperties:former_secret_expires_at": ADDED,
    "webhook.json#/definitions/webhookSubscription/properties/id/pattern": "ojs-webhooks 5.1 shows ids with sub_",
    "workflow.json#/$defs/workflow_step/properties/state/enum:blocked": OWN_CONTAINERS,
    "workflow.json#/$defs/workflow_step/properties/state/enum:skipped": OWN_CONTAINERS,
    "workflow.json#/$defs/workflow_step/required:args": "ojs-http-binding 14.1 shows steps without arguments",
    "workflow.json#/allOf/?/then/required:*": OMITTED,
    "workflow.json#/properties/metadata/additionalProperties:*": CREATOR,
    "workflow.json#/properties/state/enum:cancelling": OWN_CONTAINERS,
    "workflow.json#/properties/state/enum:compensat*": OWN_CONTAINERS,
    "workflow.json#/properties/state/enum:retried": OWN_CONTAINERS,
    "workflow.json#/properties/type/enum:*": OWN_CONTAINERS,
    "openapi.yaml#/components/schemas/Job/required:args in POST /ojs/v1/workers/ack *": SUMMARY,
    "openapi.yaml#/components/schemas/Job/required:args in POST /ojs/v1/workers/nack *": SUMMARY,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:checksum_mismatch": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:job_type_not_allowed": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:metadata_too_large": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:permission_denied": MORE_CODES,
    "openapi.yaml#/components/schemas/OJSError/properties/code/enum:x_*": OWN_CODES,
    "event.json#/properties/type/enum:job.stalled": MORE_EVENTS,
    "event.json#/properties/type/enum:job.timeout": MORE_EVENTS,
    "event.json#/properties/type/enum:job.total_timeout": MORE_EVENTS,
    "event.json#/properties/type/enum:job.ttl_expired": MORE_EVENTS,
    "api-error.json#/additionalProperties:max_batch_size": BULK,
    "openapi.yaml#/components/schemas/CronJob/properties/overlap_policy/enum:cancel_previous": CANCEL_PREVIOUS,
    "openapi.yaml#/components/schemas/NackResponse/properties/state/enum:scheduled": HANDED_BACK,
    "openapi.yaml#/components/schemas/UniquePolicy/properties/on_conflict/enum:replace_except_schedule": AS_SENT,
    "job.json#/properties/errors/items/properties/attempt/minimum": "a job that was never started has made no attempt",
}
"""Rules that answers break on purpose, because documents contradict each other or Ojster has more."""
