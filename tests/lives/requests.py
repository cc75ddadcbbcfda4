"""Random requests for jobs and workflows that use many features at once."""

from __future__ import annotations

from random import Random
from typing import Any, Final

QUEUES: Final = ("default", "mail", "slow")
TYPES: Final = ("a", "b", "c", "d")
DEFINITIONS: Final = ("release", "report")
COLLECTION: Final = "releases"

Request = dict[str, Any]

MOST_LEVELS: Final = 3
"""Maximum number of containers around a step."""


class Requests:
    """Makes requests, which the server accepts, or refuses for a reason that is not tried here.

    Parameters
    ----------
    reacts:
        Whether some of the jobs have reactions.
    """

    def __init__(self, rng: Random, *, reacts: bool = True) -> None:
        self._rng = rng
        self._reacts = reacts

    def chance(self, share: float) -> bool:
        """Return ``True`` in this share of cases."""
        return self._rng.random() < share

    def job(self, *, in_workflow: bool = False) -> Request:
        """Return a job, or a step that is one."""
        rng = self._rng
        made: Request = {"type": rng.choice(TYPES), "args": [rng.choice((1, "x", None, {"n": 1}, [1, 2]))]}
        made["options"] = {name: value for name, share, value in self._options() if self.chance(share)}
        if not in_workflow:
            later = (("scheduled_at", 0.15, f"+PT{rng.randint(1, 500)}S"), ("pending", 0.05, True))
            made["options"] |= {name: value for name, share, value in later if self.chance(share)}
        if self._reacts and self.chance(0.15):
            made["event_reactions"] = self._reactions(in_workflow=in_workflow)
        return made

    def _options(self) -> tuple[tuple[str, float, Any], ...]:
        rng = self._rng
        limit = rng.choice(({"concurrency": 1}, {"rate": {"limit": 2, "period": "PT1M"}}))
        retry = {"max_attempts": rng.randint(1, 3), "initial_interval": f"PT{rng.randint(1, 30)}S"}
        unique: Request = {"keys": rng.choice((["type"], ["type", "args"])), "on_conflict": rng.choice(CONFLICTS)}
        if self.chance(0.3):
            unique["states"] = rng.sample(("available", "active", "scheduled", "retryable", "completed"), 2)
        return (
            ("queue", 0.4, rng.choice(QUEUES)),
            ("priority", 0.3, rng.randint(-5, 5)),
            ("retry", 0.3, retry | {"on_exhaustion": rng.choice(("discard", "dead_letter"))}),
            ("unique", 0.2, unique),
            ("rate_limit", 0.12, {"key": rng.choice(("one", "two")), "on_limit": rng.choice(ON_LIMIT)} | limit),
            ("timeout", 0.1, rng.randint(1, 100)),
            ("total_timeout", 0.08, rng.randint(100, 500)),
            ("enqueue_ttl", 0.08, rng.randint(1, 400)),
            ("result_ttl", 0.05, rng.choice((0, 10, 1_000))),
        )

    def _reactions(self, *, in_workflow: bool) -> Request:
        rng = self._rng
        into = rng.choice((COLLECTION, "internal")) if in_workflow else COLLECTION
        inner = Requests(rng, reacts=False)
        enqueue = {"action": "enqueue", "job": inner.job()}
        others = (
            {"action": "start-workflow", "workflow": inner.container(MOST_LEVELS)},
            {"action": "collect", "collection": into, "name": "of-{job.id}", "data": 1},
        )
        event = rng.choice(("on_creation", "on_assignment", "on_success", "on_failure"))
        return {event: [enqueue, rng.choice(others)]}

    def workflow(self, levels: int = 0) -> Request:
        """Return a workflow that is inside so many containers."""
        rng = self._rng
        made = self.container(levels) | {"params": {"size": rng.randint(1, 6)}}
        members = (
            ("timeout", 0.15, rng.randint(10, 900)),
            ("on_error", 0.15, self.job(in_workflow=True)),
            ("on_cancel", 0.15, [self.job(in_workflow=True)]),
            ("scheduled_at", 0.08, f"+PT{rng.randint(1, 300)}S"),
            ("on_lost_worker", 0.05, rng.choice(("retry", "cancel"))),
        )
        return made | {name: value for name, share, value in members if self.chance(share)}

    def definition(self, name: str) -> Request:
        """Return a definition with a name."""
        made = self.container(MOST_LEVELS - 1)
        return made | {"name": name, "on_error": self.job(in_workflow=True)}

    def container(self, levels: int) -> Request:
        """Return a step with steps inside it."""
        rng = self._rng
        kind = rng.choice(("chain", "chain", "saga", "group", "group", "batch", "graph"))
        steps = [self.step(levels + 1, kind, number) for number in range(rng.randint(1, 4))]
        made: Request = {"type": kind, ("jobs" if kind in ("group", "batch") else "steps"): steps}
        if kind == "saga":
            made["failure_policy"] = rng.choice(("compensate", "retry", "skip"))
        elif kind == "batch":
            names = rng.sample(("on_complete", "on_success", "on_failure"), 2)
            made["callbacks"] = {name: self.job(in_workflow=True) for name in names}
        elif kind == "graph":
            for number, step in enumerate(steps):
                step["id"] = f"s{number}"
                if number and self.chance(0.7):
                    step["depends_on"] = [f"s{rng.randrange(number)}"]
        return made

    def step(self, levels: int, kind: str, position: int) -> Request:
        """Return a step at a position in a container of a kind, inside so many containers."""
        rng, turn = self._rng, self._rng.random()
        if turn < 0.28 and levels < MOST_LEVELS:
            made = self.container(levels)
        elif turn < 0.34:
            made = {"type": "gate"} | rng.choice(({}, {"timeout": rng.randint(5, 300)}))
        elif turn < 0.40:
            waits: tuple[Request, ...] = ({"delay": f"PT{rng.randint(1, 200)}S"}, {}, {"timeout": rng.randint(5, 300)})
            made = {"type": "wait"} | rng.choice(waits)
        elif turn < 0.42:
            made = {"definition": rng.choice(DEFINITIONS), "params": {"size": 3}}
        elif turn < 0.46:
            each = {"type": "a", "args": [{"$ref": "item"}]}
            made = {"type": "map", "over": rng.choice(([1, 2, 3], [], list(range(7)))), "do": each}
        else:
            made = self.job(in_workflow=True)
            if kind in ("chain", "saga") and position and self.chance(0.15):
                made["args"] = [{"$ref": f"steps.{rng.randrange(position)}.{rng.choice(('result', 'state', 'error'))}"}]
        return made | self._rules(made, kind, position)

    def _rules(self, made: Request, kind: str, position: int) -> Request:
        """Return what else is said of a step."""
        rng = self._rng
        is_work = made.get("type") not in ("gate", "wait", "map", None)
        members = (
            ("allow_failure", 0.12, True),
            ("manual", 0.06, True),
            ("fallback", 0.08 * is_work, self.job(in_workflow=True)),
            ("compensate", 0.15 * is_work, self.job(in_workflow=True)),
            ("when", 0.12 * (kind in ("chain", "graph") and position > 0), rng.choice(("finished", "failed"))),
        )
        return {name: value for name, share, value in members if self.chance(share)}


CONFLICTS: Final = ("reject", "ignore", "replace")
ON_LIMIT: Final = ("wait", "wait", "drop", "reschedule")
