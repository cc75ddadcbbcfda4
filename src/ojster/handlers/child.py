"""Children of an orchestrator."""

from __future__ import annotations

from typing import Any

import msgspec

from ojster.handlers.outcomes import HandlerOutcome
from ojster.workflows.node import ENDED
from ojster.workflows.read.info import StepInfo


class OrchestratorError(HandlerOutcome):
    """The error of a job that ran an orchestrator; ``code`` says whether it could run at all."""

    retryable = False

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Child:
    """A step that an orchestrator added, now or earlier.

    Parameters
    ----------
    id:
        Its name.
    step:
        Its status; ``None``, the default: it is being added.

    Examples
    --------
    >>> from ojster import Child, StepInfo
    >>> Child("build").state
    'new'
    >>> Child("build", StepInfo(0, "build", "gate", "blocked")).state
    'blocked'
    """

    def __init__(self, id: str, step: StepInfo | None = None) -> None:
        self.id = id
        self.info = step

    def __repr__(self) -> str:
        return f"<Child {self.id} {self.state}>"

    @property
    def state(self) -> str:
        """Its state, as in ``StepInfo``, or ``new``."""
        return "new" if self.info is None else self.info.state

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.state in ENDED

    @property
    def result(self) -> Any:
        """Its result; ``None`` until it has one."""
        return None if self.info is None else _decoded(self.info.result)

    @property
    def error(self) -> Any:
        """Why it failed, or ``None``."""
        return None if self.info is None else _decoded(self.info.error)


def _decoded(raw: msgspec.Raw | msgspec.UnsetType) -> Any:
    return msgspec.json.decode(raw) if isinstance(raw, msgspec.Raw) else None
