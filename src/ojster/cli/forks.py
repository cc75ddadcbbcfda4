"""What ``ojster workflows fork`` does with the id of one workflow: it forks it, or says what a fork would run again."""

from __future__ import annotations

import click
import msgspec

from ojster.cli.options import ask, done, json_array, resumption
from ojster.handlers.codec import Codecs
from ojster.workflows.run.fork import Fork
from ojster.workflows.run.fork_preview import ForkPoint


def fork_one(
    url: str,
    workflow_id: str,
    from_step: str | None,
    args: str | None,
    result: str | None,
    codecs: Codecs,
    *,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Fork a workflow, or with ``dry_run`` print what that would run again; return the exit status."""
    if dry_run:
        return _preview(
            url, ForkPoint(workflow_id, from_step), has_input=(args, result) != (None, None), as_json=as_json
        )
    new_args = None if args is None else msgspec.json.encode(codecs.encode_list(json_array(args)))
    item = Fork(workflow_id, from_step, new_args, resumption(result, None)[0])
    workflow = ask(url, lambda client: client.workflows.fork(item))
    done(f"{workflow_id} runs again as {workflow.id}.", as_json, workflow)
    return 0


def _preview(url: str, point: ForkPoint, *, has_input: bool, as_json: bool) -> int:
    if has_input:
        raise click.UsageError("--args and --result have no effect with --dry-run. Leave them out.")
    preview = ask(url, lambda client: client.workflows.preview_fork(point))
    said = f"{preview.again_count} steps run again, {preview.kept_count} keep their results."
    done("\n".join((*preview.again, said)), as_json, msgspec.to_builtins(preview))
    return 0
