"""Search in the contents of jobs: text of errors, tags, and members of arguments and metadata.

The database keeps contents as bytes and has no index of them. It compares bytes first, which leaves few jobs; whether
these match is decided here, from their JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import raw_list
from ojster.jobs.failure import pattern_of
from ojster.storage.transaction import Transaction

FIRST_PART: Final = 200
"""Number of candidates that are compared first: often they fill a page."""

LARGEST_PART: Final = 5_000
"""Maximum number of candidates that one statement reads."""

PART_BYTES: Final = 8_000_000
"""About how many bytes one statement reads."""

ROOTS: Final = ("args", "meta")


class Member(NamedTuple):
    """A member of the arguments or the metadata, and the value that it must have, as text.

    A path is names with dots between them: ``customer.id``. In an array, a number picks an element, and everything else
    looks into all of them: ``args.order_id`` is a member of any argument. A string must be the text; numbers, ``true``,
    ``false`` and ``null`` must be written so: ``42`` finds 42 and "42", but not 42.0.
    """

    root: str
    path: str
    text: str


def member_of(condition: str) -> Member:
    """Return the member that a condition such as ``args.order_id=42`` names.

    Raises
    ------
    InvalidRequest
        The condition has another form.
    """
    place, equals, text = condition.partition("=")
    root, _, path = place.partition(".")
    if not (equals and path and root in ROOTS) or "\0" in condition:
        raise InvalidRequest(
            f"'where' of the filter must be like 'args.order_id=42' or 'meta.customer=17', not {condition[:60]!r}.",
            field="where",
        )
    return Member(root, path, text)


class Contents(msgspec.Struct, frozen=True):
    """Conditions on the contents of jobs; see ``JobFilter``."""

    error_text: str | None = None
    error_pattern: str | None = None
    tags: tuple[str, ...] = ()
    members: tuple[Member, ...] = ()
    meta: dict[str, Any] = {}

    @property
    def needs_errors(self) -> bool:
        """Whether they are about errors."""
        return self.error_text is not None or self.error_pattern is not None

    @property
    def needs_envelope(self) -> bool:
        """Whether they are about what a job was pushed with."""
        return bool(self.tags or self.members or self.meta)

    def match(self, envelope: bytes | None, errors: bytes | None) -> bool:
        """Return whether a job with these contents matches."""
        if self.needs_errors and not self._match_error(errors):
            return False
        return not self.needs_envelope or self._match_envelope(_envelope_of(envelope or b"{}"))

    def _match_error(self, errors: bytes | None) -> bool:
        known = raw_list(errors or b"[]")
        last = _error_of(known[-1]) if known else _Error()
        if self.error_pattern is not None and pattern_of(last.message) != self.error_pattern:
            return False
        wanted = self.error_text
        return wanted is None or any(wanted.casefold() in text.casefold() for text in (last.message, last.type))

    def _match_envelope(self, seen: _Envelope) -> bool:
        if self.tags and not set(self.tags).intersection(seen.tags):
            return False
        if self.meta:
            meta = msgspec.json.decode(seen.meta, type=dict[str, msgspec.Raw])
            if not all(name in meta and _is(meta[name], value) for name, value in self.meta.items()):
                return False
        values = {root: _decoded(getattr(seen, root)) for root in {member.root for member in self.members}}
        return all(_leads_to(values[member.root], member.path, member.text) for member in self.members)


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Envelope(msgspec.Struct):
    args: msgspec.Raw = msgspec.Raw(b"[]")
    meta: msgspec.Raw = msgspec.Raw(b"{}")
    tags: tuple[str, ...] = ()


_error_of: Final = msgspec.json.Decoder(_Error).decode
_envelope_of: Final = msgspec.json.Decoder(_Envelope).decode


def _is(raw: msgspec.Raw, wanted: Any) -> bool:
    try:
        return bool(msgspec.json.decode(raw) == wanted)
    except msgspec.DecodeError:
        return False  # a number out of range, which nothing is equal to


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None  # it has a number out of range, and nothing in it can be compared


def _leads_to(value: Any, path: str, text: str) -> bool:
    """Return whether a path leads to a text. Names of members may have dots, too."""
    if isinstance(value, list):
        head, _, rest = path.partition(".")
        if head.isdecimal() and head.isascii():
            return len(head) < 9 and int(head) < len(value) and _leads_to(value[int(head)], rest, text)
        return any(_leads_to(element, path, text) for element in value)
    if not path:
        return value == text if isinstance(value, str) else _written(value) == text
    if not isinstance(value, dict):
        return False
    ends = [place for place, character in enumerate(path) if character == "."] + [len(path)]
    return any(path[:end] in value and _leads_to(value[path[:end]], path[end + 1 :], text) for end in ends)


def _written(value: Any) -> str | None:
    return None if isinstance(value, dict) else msgspec.json.encode(value).decode()


class MatchingJob(NamedTuple):
    """A job that matches: its number and id, and the value of the column by which matches are sorted."""

    seq: int
    id: str
    key: Any


class Part(NamedTuple):
    """Some candidates: those that match, how many were compared, and the ``seq`` of the last one."""

    matches: list[MatchingJob]
    compared: int
    last: int


def parts(
    tx: Transaction,
    wanted: Contents,
    rows: str,
    parameters: dict[str, Any],
    *,
    key: str = "seq",
    newest_first: bool = False,
) -> Iterator[Part]:
    """Yield all jobs whose contents match, in parts, in the order of their arrival.

    Parameters
    ----------
    rows:
        A query of jobs, with all their columns, and its ``parameters``.
    key:
        Expression of columns by which the caller sorts the matches.
    """
    needles, condition = _bytes_in(tx, wanted)
    sign, direction = ("<", "DESC") if newest_first else (">", "ASC")
    size, last = FIRST_PART, None
    while True:
        after = "TRUE" if last is None else f"j.seq {sign} :last_compared"
        candidates: list[Any] = tx.execute(
            f"""
            SELECT
                j.seq, j.id, j.key, {tx.envelope if wanted.needs_envelope else "NULL"},
                {"j.errors" if wanted.needs_errors else "NULL"}
            FROM (SELECT seq, id, errors, {key} AS key FROM ({rows}) AS chosen) AS j
            {"JOIN payloads AS p ON p.seq = j.seq" if wanted.needs_envelope else ""}
            WHERE {condition} AND {after}
            ORDER BY j.seq {direction}
            LIMIT :at_once
            """,
            parameters | needles | {"at_once": size} | ({} if last is None else {"last_compared": last}),
        )
        if not candidates:
            return
        last = candidates[-1][0]
        matches = [MatchingJob(*job) for *job, envelope, errors in candidates if wanted.match(envelope, errors)]
        yield Part(matches, len(candidates), last)
        if len(candidates) < size:
            return
        read = sum(len(envelope or b"") + len(errors or b"") for *_, envelope, errors in candidates)
        size = max(1, min(4 * size, LARGEST_PART, PART_BYTES * size // max(read, 1)))


def _bytes_in(tx: Transaction, wanted: Contents) -> tuple[dict[str, Any], str]:
    """Return the condition that all jobs fulfil that match, and its parameters: which bytes they must contain."""
    needles: dict[str, Any] = {"escape": b"\\u"} if wanted.tags or wanted.members else {}
    conditions = ["TRUE"]

    def stored(texts: Sequence[str]) -> str:
        names = []
        for text in texts:
            names.append(f"needle_{len(needles)}")
            needles[names[-1]] = text.encode("utf-8", "replace")
        return " AND ".join(tx.contains.format("p.stored", f":{name}") for name in names)

    if wanted.needs_errors:
        conditions.append("j.errors IS NOT NULL" if wanted.error_text or wanted.error_pattern else "TRUE")
    if wanted.error_text and (text := _longest(_PLAIN, wanted.error_text)):
        needles["error_needle"] = text.lower()
        conditions.append(tx.contains_text.format("j.errors", ":error_needle"))
    tags = [_longest(_UNESCAPED, tag) for tag in wanted.tags]
    if tags and all(tags):
        conditions.append(_or_escaped(tx, f"({' OR '.join(stored([tag]) for tag in tags)})"))
    for member in wanted.members:
        name = next((part for part in reversed(member.path.split(".")) if not part.isdecimal()), "")
        texts = [text for text in (_longest(_UNESCAPED, member.text), _longest(_UNESCAPED, name)) if text]
        if texts:
            conditions.append(_or_escaped(tx, stored(texts)))
    return needles, " AND ".join(conditions)


def _or_escaped(tx: Transaction, condition: str) -> str:
    r"""Return a condition that also lets through what may contain the bytes in another form.

    Any character may be escaped (``\u0061``), and large values may be stored elsewhere (``shared_values``).
    """
    escaped = tx.contains.format("p.stored", ":escape")
    return f"({condition} OR p.shared IS NOT NULL OR {escaped})"


_UNESCAPED: Final = re.compile(r'[^"\\/\x00-\x1f]+')
"""Characters that JSON has as they are, or as ``\\u`` and a number."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.:;,()=-]+")
"""Characters that errors, which the server itself has encoded, contain as they are, in upper or lower case."""


def _longest(characters: re.Pattern[str], text: str) -> str:
    return max(characters.findall(text), key=len, default="")
