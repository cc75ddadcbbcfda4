"""The steps of a workflow as a list in pages: for workflows that are too large to be shown whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec

from ojster.core.calls import SET_BY_SERVICE
from ojster.core.parsing import Bounded, PageLimit
from ojster.core.references import is_index
from ojster.storage.call import for_each, returns_refusal
from ojster.storage.transaction import Transaction
from ojster.workflows.node import Kind, Node, NodeState
from ojster.workflows.read.causes import Cause, find_causes
from ojster.workflows.read.info import ReviewInfo
from ojster.workflows.read.node_view import DISPLAY_STATES, SELECT_NODES, NodeViews
from ojster.workflows.read.reviews import find_reviews
from ojster.workflows.read.views import superseded_jobs
from ojster.workflows.read.waiting import IS_SUSPENDED
from ojster.workflows.stored_workflow import get_workflow

DEFAULT_STEPS: Final = 100
"""Number of steps in a page, unless the caller asks for another."""

MOST_STEPS: Final = 1_000
"""Maximum number of steps in a page."""

MAX_EXAMINED: Final = 10_000
"""Number of steps that a search examines for a page, which may have fewer than were asked for."""

MAX_SEARCHED_SPEC: Final = 4_096
"""Maximum size of the specification of a step that a search reads for the name that people see, in bytes."""

MAX_SEARCH_CHARS: Final = 200
"""Maximum length of a text to search for, in characters."""

STEP_STATES: Final[dict[str, str]] = {DISPLAY_STATES.get(state, state.value): state.value for state in NodeState}
"""The shown states of steps, and how they are stored."""

_WHERE: Final = {
    "": "",
    "skipped": "AND n.state NOT IN ('completed', 'failed', 'cancelled', 'compensated') ",
    "cancelled": "AND n.state NOT IN ('completed', 'failed', 'skipped', 'compensated') ",
}
"""SQL for states that a step may have because a container around it has ended: what is not so is left out later."""


class StepFilter(Bounded, frozen=True):
    """Which steps of a workflow to list.

    Parameters
    ----------
    state:
        Only steps in this state; ``None``: in any.
    after:
        Only steps with greater numbers.
    limit:
        Maximum number of steps; more than ``MOST_STEPS`` count as that.
    is_held:
        Only steps whose jobs wait for an answer, a time or a resumption.
    search:
        Only steps with this text in their name, their type, or their name for people (unless the step has much else to
        store), in small or capital letters, or as their path or its end.
    """

    workflow_id: str
    state: str | None = None
    after: Annotated[int, msgspec.Meta(ge=0, lt=10**18)] = msgspec.field(name="cursor", default=0)
    limit: PageLimit = DEFAULT_STEPS
    tenant: Annotated[str | None, SET_BY_SERVICE] = None
    is_held: bool = msgspec.field(name="held", default=False)
    search: Annotated[str, msgspec.Meta(max_length=MAX_SEARCH_CHARS)] = ""


class StepRow(msgspec.Struct, omit_defaults=True):
    """A step in a list.

    Parameters
    ----------
    path:
        Where it is: the names or positions of the containers around it and its own, joined by dots.
    kind, type:
        ``job``, ``gate`` or a kind of container; and for jobs the job type. In pictures of flows also ``step`` (a local
        one), ``receive``, ``receive_many``, ``listen``, ``listen_many``, ``sleep`` and ``update``, with the name of the
        step or the message.
    id:
        The name by which other steps refer to it, if it has one. A step with a fallback, the step itself and the
        fallback have the same.
    fallback:
        Whether it takes the place of the step with this id if that does not succeed.
    display_name:
        Its name for people, if it has one.
    state, job_state:
        Its state, and that of its job while it runs; in pictures of flows ``waiting`` if the flow waits.
    total, completed:
        For a container: number of steps in it, and how many of them have completed.
    enqueued_at, started_at, completed_at:
        When its job last became available, when it started then, and when the step ended. A container or gate starts
        when its turn comes.
    stop_requested_at:
        When its job was cancelled, or exceeded its timeout, while a worker ran it: the worker stops from then until
        ``completed_at``.
    error:
        Why it failed, as JSON.
    superseded_job_ids:
        The jobs of its attempts before it was retried, oldest first.
    because:
        Why it was skipped or cancelled, or what was undone because of what.
    reviews:
        Who has approved, rejected, answered or declined it, when, and with which note or answer.
    """

    path: str
    kind: str
    type: str
    state: str
    job_state: str | None = None
    job_id: str | None = None
    queue: str | None = None
    attempt: int | None = None
    total: int | None = None
    completed: int | None = None
    enqueued_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    stop_requested_at: str | None = None
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    superseded_job_ids: list[str] = []
    display_name: str | None = None
    id: str | None = None
    fallback: bool = False
    because: Cause | None = None
    reviews: list[ReviewInfo] = []


class StepPage(msgspec.Struct, frozen=True):
    """A page of steps, and after which number the next page begins; ``None``: it is the last one."""

    steps: list[StepRow]
    next_after: int | None


@for_each
@returns_refusal
def list_steps(tx: Transaction, chosen: StepFilter) -> StepPage:
    """Return a page of steps for each filter, or ``NotFound``."""
    root, last = get_workflow(tx, chosen.workflow_id, tenant=chosen.tenant).numbers
    first = root + chosen.after
    if chosen.search:
        return _matching(tx, chosen, root, first, last)
    rows = _rows(tx, chosen, first, last, chosen.limit + 1)
    page = rows[: chosen.limit]
    steps = [step for _, step in describe(tx, page) if chosen.state in (None, step.state)]
    return StepPage(steps, page[-1][0] - root if len(rows) > chosen.limit else None)


def _matching(tx: Transaction, chosen: StepFilter, root: int, first: int, last: int) -> StepPage:
    """Return what a search finds among the next ``MAX_EXAMINED`` steps."""
    ((last,),) = tx.execute("SELECT max(id) FROM nodes WHERE id >= ? AND id <= ?", (root, last))
    end = min(last, first + MAX_EXAMINED)
    rows = {row[0]: row for row in _rows(tx, chosen, first, end, MAX_EXAMINED)}
    displayed = [] if chosen.is_held else _displayed(tx, chosen.search.lower(), first, end)
    if displayed := [id for id in displayed if id not in rows]:
        more = tx.execute(f"{SELECT_NODES} WHERE n.id {tx.among}", (tx.integers(displayed),))
        rows |= {row[0]: row for row in more}
    shown = describe(tx, [rows[id] for id in sorted(rows)])
    matching = [
        shown_step
        for shown_step in shown
        if chosen.state in (None, shown_step[1].state) and _has(shown_step[1], chosen)
    ]
    if len(matching) > chosen.limit:
        matching = matching[: chosen.limit]
        end = matching[-1][0].id
    return StepPage([step for _, step in matching], end - root if end < last else None)


class _Named(msgspec.Struct):
    display_name: str | None = None


_name_of: Final = msgspec.json.Decoder(_Named).decode


def _displayed(tx: Transaction, text: str, first: int, last: int) -> list[int]:
    """Return the ids of the nodes whose name for people has a text in it: it is in their specifications alone."""
    query = "SELECT id, spec FROM node_specs WHERE id > ? AND id <= ? AND length(spec) <= ?"
    specs = tx.execute(query, (first, last, MAX_SEARCHED_SPEC))
    return [
        id for id, spec in specs if b'"display_name"' in spec and text in (_name_of(spec).display_name or "").lower()
    ]


def _rows(tx: Transaction, chosen: StepFilter, first: int, last: int, limit: int) -> list[tuple[Any, ...]]:
    """Return the rows of steps that may match a filter: those after ``first`` up to ``last``."""
    where = _WHERE.get(chosen.state or "", "AND n.state = :state ")
    if chosen.is_held:
        where += f"AND n.id IN (SELECT node FROM jobs WHERE node > :after AND node <= :last AND {IS_SUSPENDED} "
        where += "AND suspension <> 'flow') "
    if chosen.search:  # the type of a job that has not begun is in its specification alone: see _has
        where += """AND (
                lower(n.name) LIKE :name ESCAPE '!'
                OR n.name LIKE :exact_name ESCAPE '!'
                OR j.type LIKE :type ESCAPE '!'
                OR n.kind LIKE :type ESCAPE '!'
                OR (n.name IS NULL AND n.position = :position)
                OR (n.started_at IS NULL AND n.kind = 'job')
            )
            """
    name = chosen.search.rpartition(".")[2]
    return tx.execute(
        f"""
        {SELECT_NODES}
        WHERE n.id > :after AND n.id <= :last {where}
        ORDER BY n.id
        LIMIT :limit
        """,
        {
            "after": first,
            "last": last,
            "limit": limit,
            "state": STEP_STATES.get(chosen.state or "", chosen.state),
            "name": _like(name.lower()),
            "exact_name": _like(name),  # databases know no small letters beyond ASCII
            "type": _like(chosen.search.lower()),
            "position": int(name) if is_index(name) else -1,
        },
    )


def _like(text: str) -> str:
    """Return the pattern of texts that contain ``text``."""
    return "%" + "".join(f"!{character}" if character in "!%_" else character for character in text) + "%"


def _has(step: StepRow, chosen: StepFilter) -> bool:
    text, path = chosen.search.lower(), step.path.lower()
    own = path.rpartition(".")[2]
    if text in step.type.lower() or text in (step.display_name or "").lower() or text == path:
        return True
    # A step without a name is called by its position: only with the container's name does that say which one is meant.
    return ("." in text and f".{path}".endswith(f".{text.lstrip('.')}")) or (
        not own.isdigit() and (text in own or ("." in text and path.endswith(text)))
    )


def describe(tx: Transaction, rows: Sequence[Sequence[Any]]) -> list[tuple[Node, StepRow]]:
    """Return the nodes in rows of ``SELECT_NODES``, and how they are shown.

    Those shown as their container are left out, and those that are not visible, with what is in them.
    """
    views = NodeViews(rows)
    nodes = list(views.nodes.values())
    views.read_containers(tx)
    numbers = (tx.integers(sorted(views.nodes)),)
    views.read_specs(tx, tx.among, numbers)
    superseded = superseded_jobs(tx, nodes, tx.among, (tx.integers([node.id for node in nodes]),))
    causes = find_causes(tx, views, nodes)
    reviews = find_reviews(tx, tx.among, (tx.integers([node.id for node in nodes]),))
    shown = [(node, _show(views, node)) for node in nodes if not views.is_first_part(node) and views.is_visible(node)]
    for node, row in shown:
        row.superseded_job_ids, row.because = superseded.get(node.id, []), causes.get(node.id)
        row.reviews = reviews.get(node.id, [])
    return shown


def _show(views: NodeViews, node: Node) -> StepRow:
    view = views.view(node)
    row = StepRow(
        path=view.path,
        kind=node.kind,
        type=view.type,
        state=view.state,
        completed_at=view.completed_at,
        stop_requested_at=view.stop_requested_at,
        error=view.error,
        display_name=view.display_name,
        id=view.id,
        fallback=view.is_fallback,
    )
    row.enqueued_at, row.started_at = view.times
    if node.kind != Kind.JOB:
        row.total, row.completed = node.total, node.completed
    elif view.job is not None:
        row.queue, row.attempt, row.job_id = view.job.queue, view.job.attempt, node.job_id
        row.job_state = view.job.state if node.state == NodeState.STARTED else None
    return row
