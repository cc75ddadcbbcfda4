"""Commands that upload, download, list and delete files."""

from __future__ import annotations

from pathlib import Path

import click

from ojster.cli.options import ask, done, examples, with_json, with_url
from ojster.cli.output import print_list
from ojster.client.file_transfer import download, upload
from ojster.client.interface import Client


@click.group(
    epilog=examples(
        "ojster files put app-2.0.tar.gz",
        "ojster files get ID --to downloads/",
        "ojster collections add releases 2.0 --file app-2.0.tar.gz",
    )
)
def files() -> None:
    """Upload, download, list and delete files. Artifacts in collections and large results refer to files."""


@files.command("put", epilog=examples("ojster files put app-2.0.tar.gz --content-type application/gzip"))
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--content-type", metavar="TYPE", help="MIME type; by default guessed from the file name.")
@with_url
@with_json
def put_file(path: Path, content_type: str | None, url: str, as_json: bool) -> None:
    """Upload a file unless it is already stored; an interrupted upload resumes."""
    file = ask(url, lambda client: upload(client, path, content_type=content_type), makes=True)
    done(f"{file.id}  {file.filename}  {file.size} bytes  sha256 {file.sha256}", as_json, {"file": file})


@files.command("get", epilog=examples("ojster files get ID --to app.tar.gz"))
@click.argument("id")
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    default=".",
    show_default=True,
    help="Target file, or directory for a file with the original name.",
)
@with_url
@with_json
def get_file(id: str, target: Path, url: str, as_json: bool) -> None:
    """Download a file and verify it; after an interruption, run it again to resume."""

    async def get(client: Client) -> Path:
        return await download(client, (await client.files.find(id)).ref, target)

    path = ask(url, get)
    done(f"{path}: {path.stat().st_size} bytes, verified.", as_json, {"path": str(path)})


@files.command("list", epilog=examples("ojster files list --limit 10"))
@click.option("--limit", type=click.IntRange(1, 200), default=50, show_default=True)
@with_url
@with_json
def list_files(limit: int, url: str, as_json: bool) -> None:
    """List files, newest first."""
    files = ask(url, lambda client: client.files.select(limit))
    rows = [
        (
            file.id,
            file.filename,
            file.content_type,
            f"{file.offset} of {file.size or '?'}",
            file.complete,
            file.created_at,
        )
        for file in files
    ]
    print_list(
        as_json, {"files": files}, ("id", "name", "type", "bytes", "complete", "created"), rows, "There are no files."
    )


@files.command("delete", epilog=examples("ojster files delete ID"))
@click.argument("id")
@with_url
@with_json
def delete_file(id: str, url: str, as_json: bool) -> None:
    """Delete a file without references. The server deletes unreferenced files itself after one day."""
    ask(url, lambda client: client.files.delete(id))
    done(f"The file {id} is deleted.", as_json, {"id": id, "deleted": True})
