"""Outputs of completed jobs: the items that ``collect`` reactions put into collections.

This happens before anything else follows from the success, so that lookups in later steps find the promised items.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from ojster.collections.collect import Collect, collects_of
from ojster.collections.contents import artifacts_of, forget_templates, look_up, put, put_all
from ojster.collections.items import (
    INTERNAL,
    Item,
    NewItem,
    check_data,
    check_item_name,
    is_internal,
    key_of,
    read_lookup,
)
from ojster.collections.places import need_collection
from ojster.core.errors import InvalidPayload, InvalidRequest, NotFound, OjsterError
from ojster.core.job import NODE_BITS, Job
from ojster.core.job_flags import COLLECTS_BIT
from ojster.core.job_flags import JobEvent as Event
from ojster.core.json_objects import check_depth
from ojster.core.references import Reference, Unresolvable, follow, parse_reference, replace_lookups, resolve
from ojster.core.short_cache import cache_short
from ojster.jobs.failure import Failure
from ojster.jobs.job_json import to_json
from ojster.jobs.transitions import fail_attempt
from ojster.storage.effects import PerTransaction
from ojster.storage.transaction import Transaction, TryAgain

_ENVELOPE_ATTRIBUTES: Final = frozenset({"id", "type", "args"})
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_FIELD: Final = re.compile(r"\{((?:job|artifact)\.[^{}]+)\}")

Resolver = Callable[[Reference], bytes]
"""Resolves a reference to JSON."""

COLLECTED: Final = PerTransaction[set[str]](set)
"""Ids of jobs whose ``collect`` reactions to their success were carried out in this transaction."""

log = logging.getLogger("ojster")


def collect_outputs(tx: Transaction) -> None:
    """Carry out the ``collect`` reactions of jobs that have succeeded in this transaction."""
    succeeded = [job for job, event in tx.effects.watched if event == "on_success" and job.flags & COLLECTS_BIT]
    if succeeded and (jobs := [job for job in succeeded if job.id not in COLLECTED(tx)]):
        COLLECTED(tx).update(job.id for job in jobs)
        tx.load_envelopes(jobs)
        collect_all(
            tx,
            [(job, "on_success", action) for job in jobs for action in collects_of(job.envelope)],
        )


def collect_all(tx: Transaction, wanted: Sequence[tuple[Job, Event, Collect]]) -> None:
    """Put items into collections, in one batch if possible; record failures in the history of the job."""
    known: set[str] = set()
    ready: list[tuple[Job, Event, str, NewItem]] = []
    resolver, resolved = None, None
    for job, event, action in wanted:
        if resolver is None or resolved is not job:
            resolver, resolved = reference_resolver(job), job
        try:
            key = key_of(job.tenant, action.collection, workflow_of(job))
            items = list(_items_of(tx, job, action, resolver))
            if key not in known and not is_internal(key):
                need_collection(tx, key)
            known.add(key)
            if "{" in action.name and job.node is not None and is_internal(key):
                forget_templates(tx, job.node >> NODE_BITS, job.node & ((1 << NODE_BITS) - 1))
            ready += [(job, event, key, item) for item in items]
        except (OjsterError, Unresolvable) as error:
            note_failure(tx, job, event, str(error))
    places = {(key, item.name) for _, _, key, item in ready}
    if len(ready) > 1 and len(places) == len(ready) and all(item.replace for *_, item in ready):
        try:
            with tx.savepoint():
                put_all(tx, [(key, item, job) for job, _, key, item in ready])
                return
        except TryAgain:
            raise
        except Exception as error:
            log.info("batch insert into collections failed; items are inserted one by one: %s", error)
    for job, event, key, item in ready:
        run_reaction(tx, job, event, partial(put, tx, key, job.tenant, item, job=job))


def broken_promise(tx: Transaction, job: Job, result: bytes | None) -> str | None:
    """Return why a job with a result would not provide what its step promises; ``None`` if it would."""
    if not job.flags & COLLECTS_BIT or job.workflow is None:
        return None
    tx.load_envelopes([job])
    before, job.result = job.result, result
    resolver = reference_resolver(job)
    try:
        for action in collects_of(job.envelope):
            if action.collection == INTERNAL:
                for _ in _items_of(tx, job, action, resolver):  # made once more when the job has ended
                    pass
    except (OjsterError, Unresolvable) as error:
        return str(error)
    finally:
        job.result = before
    return None


def workflow_of(job: Job) -> int | None:
    """Return the number of a job's workflow; ``None``: the job has none."""
    return job.workflow


def run_reaction(tx: Transaction, job: Job, event: Event, act: Callable[[], object]) -> None:
    """Carry out a reaction in a savepoint; if it fails, record that in the history of the job."""
    try:
        with tx.savepoint():
            act()
    except TryAgain:
        raise
    except (OjsterError, Unresolvable) as error:
        note_failure(tx, job, event, str(error))
    except Exception as error:
        log.exception("a reaction to %s of the job %s failed", event, job.id)
        note_failure(tx, job, event, f"{type(error).__name__}: {error}")


def note_failure(tx: Transaction, job: Job, event: Event, error: str) -> None:
    """Record a failed reaction in the history of a job."""
    tx.emit("job.reaction_failed", job, reaction=event, error=error[:1_000])


def _items_of(tx: Transaction, job: Job, action: Collect, resolver: Resolver) -> Iterator[NewItem]:
    """Yield the items to put into a collection: data, or the matching artifacts of the job."""
    if action.artifacts is None:
        data = (job.result or b"null") if action.data is msgspec.UNSET else resolve(action.data, resolver)
        yield NewItem(_name_of(action, resolver), check_data(data), action.category, action.replace)
        return
    artifacts = artifacts_of(tx, job, action.artifacts)
    if not artifacts:
        raise NotFound(f"The job has no artifact for {action.name!r}.", resource_type="item")
    for item in artifacts:
        item_resolver = _artifact_resolver(item, resolver)
        data = bytes(item.data) if action.data is msgspec.UNSET else resolve(action.data, item_resolver)
        category = action.category or item.category
        new = NewItem(_name_of(action, item_resolver), check_data(data), category, action.replace)
        yield new.with_file(item.file)


def _name_of(action: Collect, resolver: Resolver) -> str:
    return check_item_name(filled(action.name, resolver))


def filled(template: str, resolver: Resolver) -> str:
    """Return a template with each reference in braces replaced by its value."""
    words, references = _parsed(template)
    texts = [word + _text(resolver(reference)) for word, reference in zip(words, references, strict=False)]
    return "".join(texts) + words[-1]


@cache_short(1024)
def _parsed(template: str) -> tuple[list[str], list[Reference]]:
    """Return the literal parts of a template, and the references between them."""
    parts = _FIELD.split(template)
    return parts[::2], [parse_reference(field) for field in parts[1::2]]


def _artifact_resolver(item: Item, resolver: Resolver) -> Resolver:
    """Return a resolver that also resolves references to an artifact: ``artifact.name``, ``artifact.data.version``."""

    def look(reference: Reference) -> bytes:
        return follow(reference, item.shown()) if reference.root == "artifact" else resolver(reference)

    return look


def reference_resolver(job: Job) -> Resolver:
    """Return a resolver of references to a job."""
    said: dict[str, msgspec.Raw] = {}
    shown: list[bytes] = []

    def look(reference: Reference) -> bytes:
        if reference.root != "job":
            raise Unresolvable(
                f"The reference {reference.text!r:.100} does not lead to the job. Use e.g. 'job.result'."
            )
        begin = reference.path[0] if reference.path else ""
        if begin in _ENVELOPE_ATTRIBUTES:  # set at the push: read from the envelope, without encoding the whole job
            said.update(_members(job.envelope) if not said else {})
            return follow(reference, said[begin], 1)
        if begin == "result" and job.result is not None:
            return follow(reference, job.result, 1)
        if not shown:
            shown.append(to_json(job))
        return follow(reference, shown[0])

    return look


def lookup_resolver(tx: Transaction, tenant: str, workflow: int | None) -> Callable[[bytes], bytes]:
    """Return a function that resolves lookups to JSON: an item, or an array of items."""

    def resolve_lookup(raw: bytes) -> bytes:
        try:
            lookups, is_single = read_lookup(raw)
            items = look_up(tx, lookups, tenant, workflow)
        except (NotFound, InvalidRequest) as error:
            raise Unresolvable(error.message) from None
        shown = [item.shown() for item in items]
        return shown[0] if is_single else b"[%b]" % b",".join(shown)

    return resolve_lookup


def resolve_lookups(tx: Transaction, job: Job) -> bool:
    """Resolve the lookups in the arguments of a job that is being claimed; return whether all succeeded.

    If one does not, the attempt fails.
    """
    members = _members(job.envelope)
    try:
        replaced = replace_lookups(members["args"], lookup_resolver(tx, job.tenant, None))
        check_depth(replaced, "The 'args' attribute with its items")
    except (Unresolvable, InvalidPayload) as error:
        job.attempt += 1
        job.started_at = tx.now
        fail_attempt(tx, job, Failure("Unresolvable", str(error), code="unresolvable_reference"))
        return False
    job.envelope = msgspec.json.encode(members | {"args": msgspec.Raw(replaced)})
    return True


def _text(raw: bytes) -> str:
    if raw.isdigit():
        return raw.decode()
    try:
        value = msgspec.json.decode(raw)
    except msgspec.MsgspecError as error:  # a number beyond what a double holds
        raise Unresolvable(f"A name cannot be made of {raw[:40].decode(errors='replace')}: {error}") from None
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    raise Unresolvable(
        f"A name cannot be made of {raw[:40].decode(errors='replace')}. Use a string, a number or a boolean."
    )
