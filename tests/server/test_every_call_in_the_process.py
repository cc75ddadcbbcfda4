"""A user in the process has every call that HTTP has."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

from ojster.core.calls import calls_of
from ojster.server import endpoints
from ojster.server.route import BASE
from ojster.service import Service
from tests.client.test_declared_calls import CAPABILITIES

BY_HAND = {
    "enqueue": "jobs.enqueue",
    "enqueue_batch": "bulk.perform",
    "enqueue_bulk": "bulk.perform",
    "cancel_batch": "bulk.perform",
    "retry_batch": "bulk.perform",
    "delete_batch": "bulk.perform",
    "cancel_bulk": "bulk.perform",
    "retry_bulk": "bulk.perform",
    "delete_bulk": "bulk.perform",
    "list_jobs": "jobs.select",
    "show_job": "jobs.find",
    "show_result": "jobs.wait_for",
    "cancel_job": "jobs.cancel",
    "show_progress": "jobs.find",
    "report_progress": "jobs.report",
    "report_worker_progress": "jobs.report",
    "save_checkpoint": "jobs.save_checkpoint",
    "clear_checkpoint": "jobs.clear_checkpoint",
    "save_replay_checkpoint": "jobs.save_checkpoint",
    "show_replay_checkpoint": "jobs.find_checkpoint",
    "show_history": "jobs.history",
    "fetch": "jobs.fetch",
    "acknowledge": "jobs.acknowledge",
    "acknowledge_batch": "jobs.acknowledge_and_fetch",
    "acknowledge_job": "jobs.acknowledge",
    "fail": "jobs.fail",
    "fail_batch": "jobs.fail",
    "fail_job": "jobs.fail",
    "release": "jobs.release",
    "release_batch": "jobs.release",
    "release_job": "jobs.release",
    "heartbeat": "fleet.beat",
    "search_jobs": "jobs.select",
    "inspect_job": "jobs.find",
    "cancel_admin_job": "jobs.cancel",
    "retry_admin_jobs": "bulk.sweep",
    "cancel_admin_jobs": "bulk.sweep",
    "delete_admin_jobs": "bulk.sweep",
    "list_dead_letters": "jobs.select",
    "list_admin_dead_letters": "jobs.select",
    "show_dead_letter": "jobs.find",
    "retry_dead_letters": "bulk.sweep",
    "purge_dead_letters": "bulk.sweep",
    "retry_admin_dead_letter": "jobs.retry_dead",
    "delete_admin_dead_letter": "jobs.delete_dead",
    "put_schema": "schemas.register",
    "list_schema_versions": "schemas.versions",
    "list_tenant_jobs": "jobs.select",
    "check_worker": "fleet.find",
    "list_admin_workers": "fleet.all",
    "show_admin_worker": "fleet.jobs_of",
    "quiet_worker": "fleet.direct",
    "pause_admin_queue": "queues.pause",
    "resume_admin_queue": "queues.resume",
    "purge_queue": "bulk.sweep",
    "list_events": "events.select",
    "follow_job": "events.read_on",
    "follow_progress": "events.read_on",
    "follow_queue": "events.read_on",
    "follow_all": "events.read_on",
    "follow_changes": "events.read_on",
    "follow_stream": "flows.read_stream",
    "create_workflow": "workflows.create",
    "list_workflows": "workflows.select",
    "show_workflow": "workflows.show",
    "cancel_workflow": "workflows.cancel",
    "show_workflow_progress": "workflows.show",
    "create_definition": "definitions.create",
    "list_definitions": "definitions.all",
    "show_latest": "definitions.find",
    "show_version": "definitions.find",
    "update_definition": "definitions.update",
    "delete_definition": "definitions.delete",
    "show_records": "flows.records",
    "take_turn": "flows.turn",
    "send_message": "flows.send",
    "list_items": "collections.items",
    "show_item": "collections.items",
    "add_item": "collections.add",
    "remove_item": "collections.remove",
    "put_file": "files.keep",
    "write_file": "files.write",
    "read_file": "files.read",
    "export_jobs": "jobs.select",
    "export_workflow": "workflows.steps",
    "export_workflows": "workflows.select",
    "export_audit_log": "audit.select",
    "list_deliveries": "jobs.select",
    "put_channel": "events.put_channel",
    "ping": "ping",
}
"""The method of a service for each endpoint that no declared call has."""

LEFT_OUT = {
    **dict.fromkeys(
        ("show_session", "log_in", "log_out", "begin_login", "finish_login"),
        "a browser's session; a caller in the process is who it says",
    ),
    **dict.fromkeys(("health", "ready", "manifest"), "about a server, which a process without one is not"),
    "test_subscription": "sends a request to a webhook, as the server that delivers does",
}
"""Endpoints without a method, with the reason."""

_ALSO = {"change_subscription", "configure_queue", "show_queue_config"}
"""Declared calls with another method or path beside."""


def test_each_operation_of_openapi_is_a_method_in_the_process() -> None:
    """OpenAPI lists the routes, each under the name of its handler."""
    declared = {
        (call.call.method, BASE + path)
        for _, declaring in CAPABILITIES
        for call in calls_of(declaring)
        for path in (call.call.path, *call.call.also)
    }
    others = [route for route in endpoints.routes_of() if (route.method, route.path) not in declared]
    assert {route.handler.__name__ for route in others} - _ALSO == BY_HAND.keys() | LEFT_OUT.keys()
    for path in BY_HAND.values():
        owner: object = Service
        *parts, method = path.split(".")
        for part in parts:
            owner = inspect.get_annotations(getattr(owner, part).func, eval_str=True)["return"]
        assert callable(getattr(owner, method)), path


def test_no_endpoint_passes_its_service() -> None:
    """A transaction that an endpoint runs by itself is a call that nobody in the process has.

    The answers to pushes have headers about limits and queues, which `ojster.server.pushes` looks up.
    """
    passing = set()
    for name in {name for names in endpoints.MODULES.values() for name in names}:
        tree = ast.parse(Path(str(import_module(f"ojster.server.endpoints.{name}").__file__)).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = ast.unparse(node.func)
                if of.endswith(("scope.do", "scope.look", "scope.survey", "database.run", "database.read")):
                    passing.add(name)
    assert passing == set()
