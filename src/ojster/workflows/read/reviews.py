"""What people have said of steps: approvals, rejections, notes and answers, and the words for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from ojster.core.timestamps import format_timestamp
from ojster.storage.transaction import Transaction
from ojster.workflows.read.info import ReviewInfo
from ojster.workflows.read.node_view import SELECT_NODES, NodeViews

_WORDS: Final = {"approve": "approved", "reject": "rejected", "answer": "answered", "decline": "declined"}

MAX_ANSWER_SHOWN: Final = 500
"""Maximum length of an answer in the words for it, in characters."""


def find_reviews(tx: Transaction, among: str, parameters: Sequence[Any]) -> dict[int, list[ReviewInfo]]:
    """Return the reviews of the nodes whose ids fulfil a condition in SQL, oldest first, by node id."""
    reviews: dict[int, list[ReviewInfo]] = defaultdict(list)
    for node, at, author, action, notes, answer in tx.execute(
        f"SELECT node, at, author, action, notes, answer FROM node_reviews WHERE node {among} ORDER BY seq", parameters
    ):
        shown = UNSET if answer is None else Raw(answer)
        reviews[node].append(ReviewInfo(format_timestamp(at), action, author, notes, shown))
    return reviews


def reviews_in_words(tx: Transaction, numbers: tuple[int, int]) -> list[tuple[str, str, str]]:
    """Return time, step and words of all reviews of a workflow, oldest first.

    Parameters
    ----------
    numbers:
        The first and the last id of its nodes.
    """
    reviews = find_reviews(tx, "BETWEEN ? AND ?", numbers)
    if not reviews:
        return []
    views = NodeViews(tx.execute(f"{SELECT_NODES} WHERE n.id {tx.among}", (tx.integers(sorted(reviews)),)))
    views.read_containers(tx)
    told = [
        (review.at, path := views.path_of(views.nodes[node]), _in_words(review, path))
        for node, known in reviews.items()
        for review in known
    ]
    return sorted(told)


def _in_words(review: ReviewInfo, path: str) -> str:
    who = review.author or "Somebody without a token"
    did = _WORDS.get(review.action or "", "made a note on")
    said = f": {review.notes}" if review.notes else ""
    if isinstance(review.answer, msgspec.Raw):
        said += f" {'with' if review.action == 'answer' else 'and'} {bytes(review.answer).decode()[:MAX_ANSWER_SHOWN]}"
    return f"{who} {did} the step {path!r}{said}"
