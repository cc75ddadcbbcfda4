"""Steps of one list that differ in their arguments alone: the third and all later ones are copies of the second.

``StepReader`` is the specification of what a copy is, and reads every step that is not certainly one.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET

from ojster.core.errors import OjsterError
from ojster.core.json_objects import Members, stored_members
from ojster.jobs.known_bodies import ARGS, KnownBodies
from ojster.jobs.models import Model, Models, are_plain
from ojster.workflows.node import Kind
from ojster.workflows.plan.step_members import Here
from ojster.workflows.plan.steps import JobStep, RequestedStep
from ojster.workflows.plan.values import Spec

_encode: Final = msgspec.json.Encoder().encode

_PLAIN: Final = frozenset({"type", "args", "meta", "options"})
"""The members of a step that is only a job; others say something about its node, or could be misspelt."""


class _Known(msgspec.Struct, frozen=True):
    """A step that was read.

    Parameters
    ----------
    common:
        Its members without its arguments.
    model:
        The model of its job.
    before, after:
        What its request has before its arguments, and after them up to its place, which comes last.
    """

    common: Members
    model: Model
    before: bytes
    after: bytes


class AlikeSteps:
    """The steps of one list, which inherit the same.

    Parameters
    ----------
    models:
        The models of their jobs.
    tenant:
        The tenant of their workflow.
    workflow_id:
        Its id, as JSON.
    """

    def __init__(self, models: Models, tenant: str, workflow_id: msgspec.Raw) -> None:
        self._models = models
        self._tenant = tenant
        self._workflow_id = bytes(workflow_id)
        self._known = KnownBodies[_Known]()
        self._begun: dict[bytes, int] = {}
        """How many steps were read, by what they have before their arguments."""

    def copy(self, raw: bytes, here: Here) -> JobStep | None:
        """Return what a step says if it differs from a known one in its arguments alone; ``None``: it must be read."""
        if (known := self._known.find(raw, self._tenant)) is None or not are_plain(known[1]):
            return None
        step, args = known
        place = _encode(here.place)
        try:
            job = self._models.copy(step.model, args, self._workflow_id, place)
        except OjsterError:  # the reader says where it is
            return None
        request = msgspec.Raw(b"".join((step.before, args, step.after, place, b"}")))
        return JobStep(*here.of(Kind.JOB), Spec(request=request), job=job)

    def learn(self, raw: bytes, step: RequestedStep) -> None:
        """Know a step that was read without a remark, unless it is the first that begins so: many are like no other."""
        begins = raw[: raw.find(ARGS)]
        self._begun[begins] = number = self._begun.get(begins, 0) + 1
        if number != 2 or not isinstance(step, JobStep) or step.spec.request is UNSET:
            return
        common, request = stored_members(raw), bytes(step.spec.request)
        model = self._models.model_of(stored_members(request), self._tenant)
        if model is None or not common.keys() <= _PLAIN:
            return
        args = bytes(common.pop("args"))
        if request.count(args) == 1:
            before, after = request.removesuffix(_encode(step.place) + b"}").split(args)
            self._known.remember(raw, args, self._tenant, _Known(common, model, before, after))
