"""Results of local steps that are files: they belong to the job that runs the flow, and are deleted with it."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from ojster.collections.contents import delete_named, put
from ojster.collections.items import NewItem, key_of_job
from ojster.core.errors import InvalidRequest
from ojster.core.job import Job
from ojster.files.file import RESULT, reference_to
from ojster.storage.transaction import Transaction
from ojster.workflows.flow import NewRecord


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
