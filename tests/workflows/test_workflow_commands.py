"""Workflows on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_commands import Ojster, ojster

__all__ = ["ojster"]

YAML = """
type: chain
name: nightly
params: {day: monday}
steps:
  - {id: fetch, type: fetch.data, args: [{$ref: params.day}]}
  - {type: gate, id: release, display_name: "Release it?"}
  - {type: publish, args: []}
"""


def test_a_workflow_is_started_from_a_file_and_steered(ojster: Ojster, tmp_path: Path) -> None:
    ojster("migrate", "--database", ojster.url)
    (tmp_path / "nightly.yaml").write_text(YAML)
    started = ojster.json("workflows", "start", "nightly.yaml", "--param", "day=tuesday", "--name", "mine")
    id = started["id"]
    assert (started["state"], started["name"], started["params"]) == ("running", "mine", {"day": "tuesday"})
    assert ojster.json("jobs", "list")["jobs"][0]["args"] == ["tuesday"]
    assert "fetch fetch.data pending" in ojster("workflows", "show", id)
    assert id in ojster("workflows", "list", "--state", "running", "--type", "chain")
    assert ojster.json("workflows", "list", "--name", "other")["workflows"] == []
    assert "is held" in ojster("workflows", "hold", id[:12])
    assert f"{id} is released" in ojster("workflows", "release", id[:12])
    assert ojster.json("workflows", "show", id[:8])["id"] == id
    assert "approved" in ojster("workflows", "approve", id, "release", "--notes", "fine", "--as", "ada")
    assert "does not wait for an approval" in ojster("workflows", "reject", id, "release", expect=4)
    assert "noted" in ojster("workflows", "note", id, "release", "--notes", "later")
    assert ojster("workflows", "draw", id).startswith("flowchart LR")
    assert ojster("workflows", "draw", id, "--svg").startswith("<svg")
    assert "waiting" in ojster("workflows", "draw", "--file", "nightly.yaml")
    assert "is cancelled" in ojster("workflows", "cancel", id)
    assert "nothing of it runs" in ojster("workflows", "terminate", id, expect=4)
    assert "cancelled" in ojster("workflows", "show", id, "--watch", expect=1)
    fork = ("workflows", "fork", id)
    assert "fetch" in ojster.json(*fork, "--from-step", "fetch", "--dry-run")["again"]
    assert "no effect with --dry-run" in ojster(*fork, "--dry-run", "--args", "[]", expect=2)
    assert f"{id} runs again as " in ojster(*fork, "--from-step", "fetch", "--args", '["x"]')
    assert ojster.json(*fork, "--from-step", "fetch", "--result", "7")["forked_from"] == id
    assert len(ojster.json("workflows", "show", id)["forks"]) == 2
    assert "must be a JSON array" in ojster(*fork, "--args", "x", expect=2)
    assert "has no step 'fetched'. Similar ones: 'fetch'" in ojster(*fork, "--from-step", "fetched", expect=3)
    assert "runs again" in ojster("workflows", "retry", id)
    assert ojster.json("workflows", "cancel", id, "--step", "fetch")["steps"][0]["state"] == "cancelled"


def test_the_failed_steps_of_a_workflow_are_listed_as_the_guide_says(ojster: Ojster, tmp_path: Path) -> None:
    ojster("migrate", "--database", ojster.url)
    steps = [{"type": "a", "args": [{"$ref": "params.missing"}], "id": "bad", "display_name": "The bad one"}]
    wire = {"type": "chain", "steps": [*steps, {"type": "b", "args": []}], "params": {}}
    (tmp_path / "bad.json").write_text(json.dumps(wire))
    id = ojster.json("workflows", "start", "bad.json")["id"]
    listed = ojster("workflows", "steps", id, "--state", "failed")
    assert "The bad one" in listed
    assert len(listed.splitlines()) == 2
    assert "The bad one" in ojster("workflows", "status", id)


def test_what_is_wrong_with_a_file_is_said(ojster: Ojster, tmp_path: Path) -> None:
    ojster("migrate", "--database", ojster.url)
    (tmp_path / "bad.json").write_text(json.dumps({"type": "chain", "steps": []}))
    assert "$.steps: steps array must contain" in ojster("workflows", "start", "bad.json", expect=1)
    (tmp_path / "list.json").write_text("[]")
    assert "must be an object" in ojster("workflows", "start", "list.json", expect=2)
    (tmp_path / "no.yaml").write_text("a: [")
    assert "neither JSON nor YAML" in ojster("workflows", "start", "no.yaml", expect=2)
    assert "NAME=VALUE" in ojster("workflows", "start", "bad.json", "--param", "x", expect=2)
    assert "Give either" in ojster("workflows", "draw", expect=2)
    assert "not found" in ojster("workflows", "show", "x", expect=3)


def test_selected_workflows_are_steered_after_a_preview(ojster: Ojster, tmp_path: Path) -> None:
    ojster("migrate", "--database", ojster.url)
    (tmp_path / "nightly.yaml").write_text(YAML)
    ids = [ojster.json("workflows", "start", "nightly.yaml")["id"] for _ in range(2)]
    shown = ojster("workflows", "hold", "--name", "nightly", "--dry-run")
    assert "2 of 2 workflows would be held." in shown
    assert all(id in shown for id in ids)
    assert ojster.json("workflows", "list", "--state", "running")["workflows"][0].get("held") is not True
    assert "2 of 2 workflows are held." in ojster("workflows", "hold", "--name", "nightly", "--yes")
    assert ojster.json("workflows", "release", "--name", "nightly", "--yes")["succeeded"] == 2
    foreseen = ojster.json("workflows", "cancel", "--state", "running", "--active", "--dry-run")
    assert (foreseen["succeeded"], foreseen["dry_run"], foreseen["ids"]) == (2, True, ids)
    assert "2 of 2" in ojster("workflows", "cancel", "--param", "day=monday", "--yes")
    assert "2 of 2 workflows are retried." in ojster("workflows", "retry", "--state", "cancelled", "--yes")
    assert "Select workflows with" in ojster("workflows", "retry", "--yes", expect=2)
    again = ("workflows", "fork", "--from-step", "fetch")
    assert "0 of 0 workflows would be forked." in ojster(*again, "--state", "failed", "--dry-run")
    assert "--args and --result need a workflow id" in ojster(*again, "--args", "[]", "--name", "n", expect=2)
    assert "--step needs a workflow id" in ojster("workflows", "retry", "--step", "fetch", "--yes", expect=2)
    assert "selects one workflow" in ojster("workflows", "cancel", ids[0], "--name", "nightly", expect=2)
