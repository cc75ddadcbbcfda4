"""Results of local steps that are files: they belong to the job that runs the flow, and are deleted with it.

A fork refers to those that it keeps, too: the flow that it was forked from may begin anew, and forget them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Raw

from ojster.collections.contents import delete_items, delete_named, put
from ojster.collections.items import NewItem, key_of_job, key_of_kept_files
from ojster.core.errors import InvalidRequest, NotFound
from ojster.core.job import Job
from ojster.files.file import MARK, RESULT, reference_to, referred_file
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import NewRecord
from ojster.workflows.stored_workflow import StoredWorkflow


def with_file(tx: Transaction, job: Job, record: NewRecord) -> NewRecord:
    """Return a record of a flow; if the result of a local step is a file, with a reference to it.

    Raises
    ------
    InvalidRequest
        Something else than a local step has a file.
    NotFound, Conflict
        The file does not exist, or is incomplete.
    """
    if record.result_file is None:
        return record
    if record.kind != "step":
        raise InvalidRequest(f"Only a local step has a 'result_file', not a {record.kind!r}.", field="records")
    name = f"{RESULT}/{record.key}"  # clients cannot choose it
    item = put(tx, key_of_job(job.seq), job.tenant, NewItem(name, b"null", None, True, record.result_file), job=job)
    assert item.file is not None
    return msgspec.structs.replace(record, result=Raw(reference_to(item.file)))


def forget_files(tx: Transaction, job: Job) -> None:
    """Forget the files of a flow's local steps: it begins anew."""
    delete_named(tx, key_of_job(job.seq), f"{RESULT}/")
    delete_items(tx, [key_of_kept_files(job.workflow or 0)])


# Results are bytes: as text, SQLite has what they are, and PostgreSQL their hexadecimal digits.
_MAY_REFER: Final = """
    SELECT key, result
    FROM flow_records
    WHERE flow = :flow
        AND kind IN ('step', 'run')
        AND (CAST(result AS text) LIKE :mark OR CAST(result AS text) LIKE :hex)
"""


def keep_files(tx: Transaction, workflow: StoredWorkflow, flow: int) -> None:
    """Refer to the files of the steps that a fork keeps, as far as they are there."""
    for key, result in tx.execute(_MAY_REFER, {"flow": flow, "mark": f"%{MARK.decode()}%", "hex": f"%{MARK.hex()}%"}):
        for number, file in enumerate(_files_in(json.loads(bytes(result)))):  # also numbers beyond those of a double
            item = NewItem(f"{RESULT}/{number}/{key}", b"null", None, True, file)
            with suppress(NotFound):
                put(tx, key_of_kept_files(workflow.seq), workflow.tenant, item)


def _files_in(value: Any) -> Iterator[str]:
    if (file := referred_file(value)) is not None:
        yield file
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _files_in(inner)
