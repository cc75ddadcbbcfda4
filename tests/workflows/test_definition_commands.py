"""Workflow definitions, properties and notes on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.cli.test_commands import Ojster, ojster

__all__ = ["ojster"]

YAML = """
name: gist
type: chain
steps:
  - {id: make, type: gist.create, args: [{$ref: params.text}]}
  - {id: star, type: gist.star, args: []}
"""


def test_definitions_are_applied_started_and_deleted(ojster: Ojster, tmp_path: Path) -> None:
    ojster("migrate", "--database", ojster.url)
    (tmp_path / "gist.yaml").write_text(YAML)
    assert "gist is created: version 1" in ojster("definitions", "apply", "gist.yaml")
    assert "gist is unchanged: version 1" in ojster("definitions", "apply", "gist.yaml")
    (tmp_path / "gist.yaml").write_text(YAML.replace("gist.star", "gist.like"))
    assert ojster.json("definitions", "apply", "gist.yaml")[0]["outcome"] == "changed"
    assert ojster.json("definitions", "list")["definitions"][0]["version"] == 2
    assert "gist" in ojster("definitions", "list")
    assert '"gist.star"' in ojster("definitions", "show", "gist", "--version", "1")
    given = ("--param", "text=hello", "--target", "/gists", "--locks", "^/g", "--property", "n=1")
    started = ojster.json("workflows", "start", "gist", *given)
    assert (started["definition"], started["target"]) == ("gist", "/gists")
    assert "locked by another workflow" in ojster("workflows", "start", "gist", "--target", "/gx", expect=4)
    id = started["id"]
    assert ojster.json("workflows", "properties", id)["properties"] == {"n": {"value": 1, "version": 1}}
    assert "m" in ojster("workflows", "properties", id, "--set", "m=x", "--delete", "n")
    assert "Noted" in ojster("workflows", "info", id, "--add", "looked at")
    assert "looked at" in ojster("workflows", "info", id)
    assert "now: make gist.create available" in ojster("workflows", "status", id).replace(
        "make make", "make gist.create"
    )
    assert "running" in ojster("workflows", "stats", "--definition", "gist")
    assert "it has no suspended job" in ojster("workflows", "resume", id, "--result", "1", expect=4)
    assert "either --result or --error" in ojster("workflows", "resume", id, "--result", "1", "--error", "x", expect=2)
    job = ojster.json("workflows", "show", id)["steps"][0]["job_id"]
    assert "no notes" in ojster("jobs", "info", job)
    assert "unfinished workflows" in ojster("definitions", "delete", "gist", expect=4)
    assert "is deleted" in ojster("definitions", "delete", "gist", "--force")
    assert "no definition" in ojster("definitions", "show", "gist", expect=3)
    (tmp_path / "bad.yaml").write_text("type: chain")
    assert "'name'" in ojster("definitions", "apply", "bad.yaml", expect=2)


def test_files_and_definitions_are_started_with_the_same_options(ojster: Ojster, tmp_path: Path) -> None:
    (tmp_path / "gist.yaml").write_text(YAML)
    ojster("definitions", "apply", "gist.yaml")
    given = ("--param", "text=hello", "--property", "n=1", "--name", "now", "--delay", "3600")
    for workflow in ("gist.yaml", "gist"):
        started = ojster.json("workflows", "start", workflow, *given)
        assert (started["name"], started["state"]) == ("now", "pending")
        properties = ojster.json("workflows", "properties", started["id"])["properties"]
        assert properties == {"n": {"value": 1, "version": 1}}
    assert started["definition"] == "gist"
    refused = ojster("workflows", "start", "nightly", expect=3)
    assert "no file nightly either" in " ".join(refused.split())


def test_a_workflow_that_is_unknown_cannot_be_deleted(ojster: Ojster) -> None:
    unknown = "019461a8-1a2b-7c3d-8e4f-5a6b7c8d9e0f"
    for more in ([], ["--dry-run"]):
        assert unknown in ojster("workflows", "delete", unknown, "-y", *more, expect=3)
