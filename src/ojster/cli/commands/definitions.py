"""Commands for workflow definitions, and to start workflows from them."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from ojster.cli.declared import NUMBER
from ojster.cli.options import ask, done, examples, read_file, with_json, with_url
from ojster.cli.output import ago, console, print_json, print_list
from ojster.client.interface import Client
from ojster.core.errors import Duplicate, NotFound
from ojster.core.json_objects import Members, read_members
from ojster.core.wire import Json
from ojster.workflows import answer_wire
from ojster.workflows.definition import Definition
from ojster.workflows.definitions import DefinitionDeletion, Named


@click.group(
    epilog=examples(
        "ojster definitions apply gist.yaml",
        "ojster definitions list",
        "ojster workflows start gist --param description=demo --target /gists --watch",
    )
)
def definitions() -> None:
    """Create, list, show, change and delete workflow definitions. 'ojster workflows start NAME' starts one."""


@definitions.command(
    epilog=examples("ojster definitions apply gist.yaml", "ojster definitions apply flows/*.yaml --json")
)
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
)
@with_url
@with_json
def apply(files: tuple[Path, ...], url: str, as_json: bool) -> None:
    """Create the definitions in FILES (JSON or YAML), or add a version to those that have changed.

    Each file has the 'name' of the definition and the members of its workflows: 'type', 'steps', 'on_error', ….
    """
    written: list[tuple[str, Members]] = []
    for file in files:
        wire = read_file(file)
        name = wire.pop("name", None)
        if not isinstance(name, str):
            raise click.UsageError(f"{file} has no string 'name'. Add the name of the definition.")
        written.append((name, read_members(msgspec.json.encode(wire), str(file))))

    async def apply_all(client: Client) -> list[tuple[str, Definition]]:
        return [await _apply(client, name, members) for name, members in written]

    applied = ask(url, apply_all, makes=True)
    if as_json:
        print_json([_members(definition) | {"outcome": outcome} for outcome, definition in applied])
        return
    for outcome, definition in applied:
        console.print(f"{definition.name} is {outcome}: version {definition.version}.", highlight=False)


async def _apply(client: Client, name: str, members: Members) -> tuple[str, Definition]:
    try:
        before = await client.definitions.find(Named(name))
    except NotFound:
        try:
            return "created", await client.definitions.create(name, members)
        except Duplicate:  # another client has just created it
            before = await client.definitions.find(Named(name))
    after = await client.definitions.update(name, members)
    return ("unchanged" if after.version == before.version else "changed"), after


@definitions.command("list", epilog=examples("ojster definitions list"))
@with_url
@with_json
def list_definitions(url: str, as_json: bool) -> None:
    """List the latest version of every definition."""
    definitions = ask(url, lambda client: client.definitions.all())
    print_list(
        as_json,
        {"definitions": [_members(definition) for definition in definitions]},
        ("name", "# version", "type", "branches", "created"),
        [
            (
                definition.name,
                definition.version,
                _type(definition),
                ", ".join(sorted(definition.hashes)),
                ago(definition.created_at),
            )
            for definition in definitions
        ],
        "There are no definitions.",
    )


def _type(definition: Definition) -> str:
    return str(msgspec.json.decode(definition.members.get("type", b'"graph"')))


@definitions.command(
    "show", epilog=examples("ojster definitions show gist", "ojster definitions show gist --version 2")
)
@click.argument("name")
@click.option("--version", "-V", type=NUMBER, help="Version; by default the latest.")
@with_url
def show_definition(name: str, version: int | None, url: str) -> None:
    """Show a definition as JSON, with the SHA-256 of each branch."""
    print_json(_members(ask(url, lambda client: client.definitions.find(Named(name, version)))))


@definitions.command(
    "delete", epilog=examples("ojster definitions delete gist", "ojster definitions delete gist --force")
)
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete it even if some of its workflows are unfinished; these continue.")
@with_url
@with_json
def delete_definition(name: str, force: bool, url: str, as_json: bool) -> None:
    """Delete a definition with all its versions."""
    ask(url, lambda client: client.definitions.delete(DefinitionDeletion(name, force)))
    done(f"{name} is deleted.", as_json, {"name": name, "deleted": True})


def _members(definition: Definition) -> dict[str, Json]:
    members: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(answer_wire.show_definition(definition)))
    return members
