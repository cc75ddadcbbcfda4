"""Models of jobs: requests that differ in their arguments alone become copies of the first one's job."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import Final, overload

import msgspec
from msgspec.structs import replace

from ojster.core.ids import new_id
from ojster.core.json_objects import Members, opening_brackets, stored_members
from ojster.core.turns import ITEMS_PER_TURN
from ojster.jobs.attributes import OF_STEPS
from ojster.jobs.known_bodies import KnownBodies
from ojster.jobs.new_job import MARK, MAX_JOB_DEPTH, NewJob, check_envelope, other_members, read_job
from ojster.storage.memory import Local

_COMMON: Final = ("type", "meta", "options")
"""The members of a plain request that many requests have in common."""

_PLAIN: Final = frozenset({*_COMMON, "args"})

_PLAIN_STEP: Final = _PLAIN | OF_STEPS
"""Every step of a workflow has its attributes, which say nothing else about the job."""

MOST_MODELS: Final = 100
"""Maximum number of models that are kept."""

LARGEST_RECENT: Final = 2_000
"""Maximum size of a request whose model is kept for later ones, in bytes of its members."""

COPIES_PER_READ: Final = 5
"""Number of jobs that can be made from a model in the time in which one is read."""

COPIES_PER_TURN: Final = COPIES_PER_READ * ITEMS_PER_TURN
"""Number of jobs made from a model after which other tasks of the event loop run."""

FEWEST_COPIES: Final = 200
"""Number of alike requests from which on their jobs are made while the database inserts."""

Shape = tuple[str, int, bytes, bytes, bytes]
"""What plain requests have in common: the tenant, how many attributes of steps, and ``_COMMON``."""

_RecentKey = tuple[str | None, str, Shape]
"""The tenant of a request, the tenant if it names none, and its shape."""


def shape_of(members: Members, tenant: str = "", *, is_step: bool = False) -> Shape | None:
    """Return what plain requests have in common if they differ in their arguments alone; ``None``: it is not plain."""
    if not members.keys() <= (_PLAIN_STEP if is_step else _PLAIN):
        return None
    type, meta, options = [bytes(members.get(name, b"")) for name in _COMMON]
    return tenant, len(OF_STEPS & members.keys()), type, meta, options


class _PlainStep(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The stored request of a step that has no other members."""

    type: msgspec.Raw
    args: msgspec.Raw
    workflow_id: msgspec.Raw
    workflow_step: msgspec.Raw
    meta: msgspec.Raw = msgspec.Raw(b"")
    options: msgspec.Raw = msgspec.Raw(b"")


_read_plain_step: Final = msgspec.json.Decoder(_PlainStep).decode


class Model:
    """A job from which others are made without reading anything but their arguments.

    Parameters
    ----------
    job:
        The job, as it was read.
    request:
        What it was read from.
    """

    __slots__ = ("_job", "_parts", "_plain_brackets", "_request", "common", "has_others")

    def __init__(self, job: NewJob, request: Members) -> None:
        self._job = job
        self._request = request
        self._parts: tuple[bytes, bytes, bytes, bytes] | None = None
        self.has_others = not OF_STEPS.isdisjoint(request)
        self.common = {name: value for name, value in request.items() if name != "args"}
        """The request without its arguments."""
        self._plain_brackets = 0
        """With that many brackets in the arguments, a job is certainly not nested too deeply."""

    def job(self, request: Members, args: bytes) -> NewJob:
        """Return the job of a request with these arguments."""
        return self.with_others(args, _others(request) if self.has_others else b"")

    def with_others(self, args: bytes, others: bytes) -> NewJob:
        """Return a job with these arguments, and these attributes of steps: each with a comma before it."""
        id, envelope = self.id_and_envelope(args, others)
        return replace(self._job, id=id, envelope=envelope)

    def id_and_envelope(self, args: bytes, others: bytes = b"") -> tuple[str, bytes]:
        """Return what a job with these arguments, and these attributes of steps, has for itself."""
        before_id, after_id, after_args, after_others = self._parts or self._divide()
        id = new_id()
        return id, b"".join((before_id, id.encode(), after_id, args, after_args, others, after_others))

    def fits(self, args: Sequence[bytes], largest: int) -> bool:
        """Return whether jobs with these arguments, all arrays, are certainly allowed, as ``copy`` checks each."""
        room = largest - len(self._job.envelope) + len(self._request["args"])
        if self._parts is None:
            self._divide()
        deepest = self._plain_brackets
        longest = max(map(len, args))
        is_shallow = longest <= 2 * deepest or all(opening_brackets(array) <= deepest for array in args)
        return longest <= room and is_shallow and not any(MARK in array for array in args)

    def copy(self, members: Members, largest: int) -> NewJob | None:
        """Return the job of a request that differs in its arguments alone, and consume it; ``None``: read it.

        Raises
        ------
        PayloadTooLarge, InvalidPayload
            The job is larger than ``largest``, or nested too deeply.
        """
        if (raw := members.pop("args", None)) is None:
            return None
        args = bytes(raw)
        if members == self.common and are_plain(args):
            return self.checked(self.job(members, args), args, largest)
        members["args"] = raw
        return None

    def checked(self, job: NewJob, args: bytes, largest: int) -> NewJob:
        """Return a job with these arguments that was made here, unless it is too large or nested too deeply."""
        if len(job.envelope) > largest or len(args) > 2 * self._plain_brackets:  # each level takes two bytes
            check_envelope(job.envelope, largest)
        job.model = self
        return job

    def _divide(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Return the envelope without what differs: not before the second job, because many are the only one."""
        before_id, rest = self._job.envelope.split(self._job.id.encode(), 1)
        after_id, rest = rest.split(bytes(self._request["args"]), 1)
        others = _others(self._request)
        after_args, after_others = rest.rsplit(others, 1) if others else (rest, b"")
        self._parts = (before_id, after_id, after_args, after_others)
        self._plain_brackets = MAX_JOB_DEPTH - sum(map(opening_brackets, self._parts))
        return self._parts


class AlikeRequests(Sequence[Members]):
    """Requests that differ in their arguments alone, which is known without a look at each.

    Parameters
    ----------
    common:
        What they have in common.
    args:
        The arguments of each: JSON arrays.
    """

    def __init__(self, common: Members, args: Sequence[bytes]) -> None:
        self.args = args
        self._common = common

    def __len__(self) -> int:
        return len(self.args)

    @overload
    def __getitem__(self, place: int) -> Members: ...

    @overload
    def __getitem__(self, place: slice) -> AlikeRequests: ...

    def __getitem__(self, place: int | slice) -> Members | AlikeRequests:
        if isinstance(place, slice):
            return AlikeRequests(self._common, self.args[place])
        return {**self._common, "args": msgspec.Raw(self.args[place])}


class Copies(list[NewJob]):
    """Jobs that differ from the first in their ids and arguments alone: a list of the first, again and again.

    Each is checked already. Its id and its envelope are made in the transaction, while the database inserts those
    before it. If the transaction runs again, so does that: a job has the id with which it was committed.
    """

    def __init__(self, first: NewJob, model: Model, args: Sequence[bytes]) -> None:
        super().__init__([first] * len(args))
        self._model = model
        self._args = args

    def made(self) -> Iterator[tuple[str, bytes]]:
        """Make the id and the envelope of each job, one after another."""
        yield self[0].id, self[0].envelope
        for args in islice(self._args, 1, None):
            yield self._model.id_and_envelope(args)


class Models:
    """The models of jobs that are read at one time, from which their relative times count.

    Parameters
    ----------
    now:
        That time, in microseconds since the epoch.
    largest:
        Maximum size of a job as JSON, in bytes.
    kept:
        Models of jobs without times that were read at other times (``step_models``); default: none.
    """

    def __init__(self, now: int, largest: int, kept: dict[Shape, Model] | None = None) -> None:
        self._now = now
        self._largest = largest
        self._kept = kept
        self._models: dict[Shape, Model] = {}
        self._last: Model | None = None
        """The model of the last request."""

    def read(self, members: Members, tenant: str) -> NewJob:
        """Return the job of a step that a request describes, as ``read_job`` does; the request is consumed."""
        shape = shape_of(members, tenant, is_step=True)
        if (job := self.job(shape, members)) is not None:
            return job
        request = dict(members)
        job = read_job(members, self._now, largest=self._largest, tenant=tenant, is_step=True)
        self.keep(shape, job, request)
        return job

    def read_stored(self, request: bytes | msgspec.Raw, tenant: str) -> NewJob:
        """Return what ``read`` does for the stored request of a step, whose arguments refer to nothing."""
        try:
            step = _read_plain_step(request)
        except msgspec.ValidationError:
            return self.read(stored_members(request), tenant)
        shape = (tenant, len(OF_STEPS), bytes(step.type), bytes(step.meta), bytes(step.options))
        args = bytes(step.args)
        model = self._models.get(shape) or (self._kept and self._kept.get(shape))
        if not are_plain(args):
            return self.read(stored_members(request), tenant)
        if not model:
            return self._read_and_keep(shape, stored_members(request), tenant)
        return self.copy(model, args, bytes(step.workflow_id), bytes(step.workflow_step))

    def model_of(self, request: Members, tenant: str) -> Model | None:
        """Return the model of the jobs of steps that differ from a request in their arguments alone, if it is kept."""
        shape = shape_of(request, tenant, is_step=True)
        return None if shape is None else self._models.get(shape)

    def copy(self, model: Model, args: bytes, workflow_id: bytes, place: bytes) -> NewJob:
        """Return the job of a step with these plain arguments; ``workflow_id`` and ``place`` are JSON.

        Raises
        ------
        PayloadTooLarge, InvalidPayload
            The job is larger than allowed, or nested too deeply.
        """
        others = b',"workflow_id":%b,"workflow_step":%b' % (workflow_id, place)
        return model.checked(model.with_others(args, others), args, self._largest)

    def _read_and_keep(self, shape: Shape, members: Members, tenant: str) -> NewJob:
        """Read the request of a step, and keep its model for other transactions."""
        request = {name: raw.copy() for name, raw in members.items()}  # else each keeps the whole message
        is_known = self._kept is None or shape in self._models
        job = self.read(members, tenant)
        may_differ = shape not in self._models or job.scheduled_at is not None or job.expires_at is not None
        if self._kept is not None and not (is_known or may_differ) and len(job.envelope) <= LARGEST_RECENT:
            if len(self._kept) >= MOST_MODELS:
                self._kept.clear()
            self._kept[shape] = Model(copy(job), request)
        return job

    def job(self, shape: Shape | None, members: Members) -> NewJob | None:
        """Return the job that a request of a shape describes; ``None``: it must be read.

        Raises
        ------
        PayloadTooLarge, InvalidPayload
            The job is larger than allowed, or nested too deeply.
        """
        model = None if shape is None else self._models.get(shape)
        args = bytes(members.get("args", b""))
        if model is None or not are_plain(args):
            return None
        job = model.job(members, args)
        check_envelope(job.envelope, self._largest)
        self._last = model
        return job

    def next_job(self, members: Members) -> NewJob | None:
        """Return what ``job`` does, if a request differs from the last one in its arguments alone; ``None``: ask it."""
        return None if self._last is None else self._last.copy(members, self._largest)

    def keep(self, shape: Shape | None, job: NewJob, request: Members) -> Model | None:
        """Make a model of a job that was read from a request of a shape, unless more than its args depends on them."""
        if shape is None or differs_in_more(job):
            return None
        if len(self._models) >= MOST_MODELS:
            self._models.clear()
        self._last = self._models[shape] = Model(copy(job), request)  # the caller may change the job
        return self._last


class Met:
    """What requests have in common, if one has had it: of the first there is no model, since many are like no other.

    Parameters
    ----------
    most:
        Maximum number that is remembered, as hashes; the oldest goes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._hashes: dict[int, None] = {}

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._hashes)

    def has(self, key: Hashable) -> bool:
        """Return whether a request has had this before; from now on, one has."""
        number = hash(key)
        if number in self._hashes:
            return True
        if len(self._hashes) >= self._most:
            del self._hashes[next(iter(self._hashes))]
        self._hashes[number] = None
        return False


class RecentRequests:
    """Models of plain requests that come alone: the types, options and metadata of most are those of others."""

    def __init__(self) -> None:
        self._models: dict[_RecentKey, Model] = {}
        self._last_of_type: dict[tuple[str | None, str, bytes], Model] = {}
        """The model that was used last, by the tenant of a request, the tenant if it names none, and its job type."""
        self._met = Met(MOST_MODELS)

    def read(self, members: Members, now: int, *, largest: int, tenant: str | None, otherwise: str) -> NewJob:
        """Return the job that a request describes, as ``read_job`` does; the request is consumed."""
        shape = shape_of(members)
        if shape is None:
            return read_job(members, now, largest=largest, tenant=tenant, otherwise=otherwise)
        key = (tenant, otherwise, shape)
        if (model := self._models.get(key)) is not None and (job := model.copy(members, largest)) is not None:
            self._last_of_type[tenant, otherwise, shape[2]] = model
            return job
        request = dict(members) if self._met.has(key) else None
        job = read_job(members, now, largest=largest, tenant=tenant, otherwise=otherwise)
        if request is not None:
            job.model = self._keep(key, job, request)
        return job

    def copy(self, members: Members, *, largest: int, tenant: str | None, otherwise: str) -> NewJob | None:
        """Return what ``read`` does, if a request is like the last one of its type; ``None``: ask that."""
        model = self._last_of_type.get((tenant, otherwise, bytes(members.get("type", b""))))
        return None if model is None else model.copy(members, largest)

    def _keep(self, key: _RecentKey, job: NewJob, request: Members) -> Model | None:
        has_times = job.scheduled_at is not None or job.expires_at is not None  # some count from the request
        is_large = sum(map(len, request.values())) > LARGEST_RECENT
        if has_times or is_large or differs_in_more(job):
            return None
        if len(self._models) >= MOST_MODELS:
            self._models.clear()
            self._last_of_type.clear()
        request = {name: raw.copy() for name, raw in request.items()}  # else each keeps the whole body
        model = self._models[key] = Model(copy(job), request)  # the caller may change the job
        return model


recent_requests: Final = Local(RecentRequests)

known_bodies: Final = Local(KnownBodies[Model])

step_models: Final = Local[dict[Shape, Model]](dict)
"""Models of the jobs of steps, from one transaction to the next."""


def differs_in_more(job: NewJob) -> bool:
    """Return whether other jobs with the same request, but for the arguments, differ in more than their arguments."""
    return job.unique is not None or job.limit is not None or bool(job.flags) or job.suspension is not None


def are_plain(args: bytes) -> bool:
    """Return whether arguments are an array without references to other values."""
    return args[:1] == b"[" and MARK not in args


def _others(members: Members) -> bytes:
    of_step = {name: members[name] for name in members if name in OF_STEPS}
    return other_members(of_step) if of_step else b""
