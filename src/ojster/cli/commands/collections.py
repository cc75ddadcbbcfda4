"""Commands for collections and their items."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from ojster.cli.commands.jobs import _argument
from ojster.cli.declared import option_of, together
from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import print_list
from ojster.client.file_transfer import upload
from ojster.client.interface import Client
from ojster.collections.items import Item, Matching, NewItem, Where
from ojster.collections.named import Collection
from ojster.core.values import to_json


@click.group(
    epilog=examples(
        "ojster collections create releases",
        "ojster collections set releases --keep-removed P30D",
        'ojster collections add releases 2.0 \'{"file": "app-2.0.tar.gz"}\' --replace',
        "ojster collections items releases --starts-with 2.",
        "ojster collections items --workflow ID",
        "ojster collections items --job ID          # the artifacts of a job",
        "ojster collections add releases 2.0 --file app-2.0.tar.gz",
    )
)
def collections() -> None:
    """Create, change, list and delete collections; list, add and remove items, also of workflows and jobs."""


with_collection_options: Final = together(
    click.argument("collection", required=False),
    click.option("--workflow", metavar="ID", help="The collection of this workflow."),
    click.option("--job", metavar="ID", help="The artifacts of this job."),
)
"""Adds the argument and the options that select a collection."""


def _selected_collection(collection: str | None, workflow: str | None, job: str | None) -> Where:
    if (collection, workflow, job).count(None) != 2:
        raise click.UsageError("Give exactly one: the name of a collection, --workflow ID, or --job ID.")
    return Where(collection, workflow, job)


with_settings: Final = together(
    option_of(Collection, "description"),
    option_of(Collection, "keep_removed", metavar="PERIOD"),
    option_of(Collection, "shared", "--shared/--not-shared", default=None),
)
"""Adds the options that set what a collection is for, what it keeps, and who reads it."""


@collections.command(
    "create", epilog=examples("ojster collections create releases --description 'What we ship' --keep-removed P90D")
)
@click.argument("name")
@with_settings
@with_url
@with_json
def create_collection(
    name: str, description: str | None, keep_removed: str | None, shared: bool | None, url: str, as_json: bool
) -> None:
    """Create a collection."""

    async def create(client: Client) -> Collection:
        return await client.collections.create(name, description, keep_removed=keep_removed, shared=bool(shared))

    made = ask(url, create, makes=True)
    done(f"The collection {made.name} is created.", as_json, made)


@collections.command("set", epilog=examples("ojster collections set releases --keep-removed P30D --shared"))
@click.argument("name")
@with_settings
@with_url
@with_json
def change_collection(
    name: str, description: str | None, keep_removed: str | None, shared: bool | None, url: str, as_json: bool
) -> None:
    """Change settings of a collection; what is not given stays as it is."""
    options = {"description": description, "keep_removed": keep_removed, "shared": shared}
    changes: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    if not changes:
        raise click.UsageError("Give what to change: --description, --keep-removed, --shared or --not-shared.")
    changed = ask(url, lambda client: client.collections.change(name, **changes))
    done(f"The collection {changed.name} is changed.", as_json, changed)


@collections.command("list", epilog=examples("ojster collections list"))
@with_url
@with_json
def list_collections(url: str, as_json: bool) -> None:
    """List the collections."""
    collections = ask(url, lambda client: client.collections.all())
    rows = [
        (
            collection.name,
            collection.items,
            collection.created_at,
            collection.created_by,
            collection.keep_removed,
            collection.workspace,
            collection.description,
        )
        for collection in collections
    ]
    headers = ("name", "# items", "created", "by", "keeps removed", "shared by", "description")
    print_list(as_json, {"collections": collections}, headers, rows, "There are no collections.")


@collections.command("delete", epilog=examples("ojster collections delete releases --force"))
@click.argument("name")
@click.option("--force", is_flag=True, help="Delete it even if it has items.")
@with_url
@with_json
def delete_collection(name: str, force: bool, url: str, as_json: bool) -> None:
    """Delete a collection with all its items and their history."""
    ask(url, lambda client: client.collections.delete(name, force=force))
    done(f"The collection {name} is deleted.", as_json, {"name": name, "deleted": True})


@collections.command(
    "items", epilog=examples("ojster collections items releases --history", "ojster collections items --workflow ID")
)
@with_collection_options
@click.option("--starts-with", metavar="TEXT", help="Only items with a name that starts with TEXT.")
@click.option("--category", help="Only items of this category.")
@click.option("--history", is_flag=True, help="Include removed and replaced items.")
@with_url
@with_json
def list_items(
    collection: str | None,
    workflow: str | None,
    job: str | None,
    starts_with: str | None,
    category: str | None,
    history: bool,
    url: str,
    as_json: bool,
) -> None:
    """List the items of a collection, oldest first."""
    where = _selected_collection(collection, workflow, job)
    matching = Matching(name_startswith=starts_with, category=category)
    items = ask(url, lambda client: client.collections.items(where, matching, history=history))
    print_list(
        as_json,
        {"items": items},
        ("name", "kind", "category", "data", "file", "by", "added", "removed"),
        [
            (
                item.name,
                item.kind,
                item.category,
                bytes(item.data).decode()[:80],
                None if item.file is None else item.file.id,
                item.created_by,
                item.created_at,
                item.removed_at,
            )
            for item in items
        ],
        "There are no items.",
    )


@collections.command("add", epilog=examples('ojster collections add releases 2.0 \'{"file": "a.tar.gz"}\''))
@click.argument("collection")
@click.argument("name")
@click.argument("data", default="null")
@click.option("--category", help="Category of the item.")
@click.option("--replace", is_flag=True, help="Replace an item of the same name.")
@click.option(
    "--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Upload this file as an artifact."
)
@with_url
@with_json
def add_item(
    collection: str,
    name: str,
    data: str,
    category: str | None,
    replace: bool,
    file: Path | None,
    url: str,
    as_json: bool,
) -> None:
    """Add an item to a collection: DATA is JSON, otherwise a string; --file adds a file."""
    value: Any = _argument(data)

    async def add(client: Client) -> Item:
        item = NewItem(name, to_json(value), category, replace)
        if file is not None:
            item = msgspec.structs.replace(item, file_id=(await upload(client, file)).id, filename=file.name)
        return await client.collections.add(Where(collection), item)

    made = ask(url, add)
    done(f"{name} is added to {collection}.", as_json, made)


@collections.command("remove", epilog=examples("ojster collections remove releases 2.0"))
@click.argument("collection")
@click.argument("name")
@with_url
@with_json
def remove_item(collection: str, name: str, url: str, as_json: bool) -> None:
    """Remove an item from a collection; the history keeps it."""
    removed = ask(url, lambda client: client.collections.remove(Where(collection), name))
    done(f"{name} is removed from {collection}.", as_json, removed)
