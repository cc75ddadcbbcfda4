"""Query parameters of lists and of long polls."""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

import msgspec
from msgspec import UNSET

from ojster.core.errors import InvalidRequest
from ojster.core.json_objects import read_members
from ojster.core.parsing import read_value
from ojster.core.wire import NumberedPaginationBody, PaginationBody
from ojster.server.answer import Answer
from ojster.server.request import Handler, HttpRequest


def page_of(query: Mapping[str, str], *, default: int = 50, largest: int = 200) -> tuple[int, int, int | None]:
    """Return ``limit`` (at most ``largest``), ``offset``, and the position that ``cursor`` encodes.

    ``per_page`` and ``page``, which some clients send to all lists, are accepted in place of ``limit`` and ``offset``.

    Raises
    ------
    InvalidRequest
        A parameter is malformed.

    Spec: ojs-http-binding 17
    """
    limit = min(whole(query, "limit", whole(query, "per_page", default, 1), 1), largest)
    cursor = query.get("cursor")
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise InvalidRequest(f"The cursor {cursor[:40]!r} is invalid. Use 'next_cursor' of a page.", field="cursor")
    before = int(cursor) if cursor else None
    return limit, whole(query, "offset", (whole(query, "page", 1, 1) - 1) * limit, 0), before


def whole(query: Mapping[str, str], name: str, default: int, least: int) -> int:
    """Return a query parameter that is an integer of at least ``least``.

    Raises
    ------
    InvalidRequest
        The parameter is no such integer, or has more than 9 digits.
    """
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
        raise InvalidRequest(f"The parameter {name!r} must be an integer from {least} to 999999999, not {text[:40]!r}.")
    return int(text)


def flag(query: Mapping[str, str], name: str, *, otherwise: bool = False) -> bool:
    """Return a query parameter that is ``true`` or ``false``; ``otherwise`` if it is missing.

    Raises
    ------
    InvalidRequest
        It is something else.
    """
    text = query.get(name)
    if text not in (None, "true", "false"):
        raise InvalidRequest(f"The parameter {name!r} must be 'true' or 'false', not {text[:40]!r}.", field=name)
    return otherwise if text is None else text == "true"


def object_of(query: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return a query parameter that is a JSON object; an empty one if it is missing.

    Raises
    ------
    InvalidRequest
        It is no JSON object.
    """
    members = read_members(query[name].encode(), f"The parameter {name!r}") if name in query else {}
    return {member: read_value(raw, name) for member, raw in members.items()}


def wait_ms(query: Mapping[str, str]) -> float:
    """Return the parameter ``wait_ms`` in seconds; 0 if it is missing.

    Raises
    ------
    InvalidRequest
        It is not an integer of at most 6 digits.
    """
    text = query.get("wait_ms", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise InvalidRequest(f"'wait_ms' must be 0 to 999999 milliseconds, not {text[:40]!r}.", field="wait_ms")
    return int(text) / 1000


class NumberedPage(msgspec.Struct, frozen=True):
    """A page of an admin list; ``number`` starts at 1.

    Spec: ojs-admin-api 7.1
    """

    number: int
    size: int
    offset: int
    """The number of entries before the page."""


def numbered_page(query: Mapping[str, str]) -> NumberedPage:
    """Return the page given by ``page`` (default 1) and ``per_page`` (default 20, at most 100).

    ``limit`` and ``offset`` are accepted in place of ``per_page`` and ``page``.

    Raises
    ------
    InvalidRequest
        A parameter is malformed.
    """
    size = min(whole(query, "per_page", whole(query, "limit", 20, 1), 1), 100)
    offset = whole(query, "offset", (whole(query, "page", 1, 1) - 1) * size, 0)
    return NumberedPage(offset // size + 1, size, offset)


def numbered_pagination(page: NumberedPage, total: int) -> NumberedPaginationBody:
    """Return the ``pagination`` object of an admin list."""
    return NumberedPaginationBody(total, page.number, page.size)


def numbered(handler: Handler) -> Handler:
    """Return the handler of a list, with answers for clients that ask for pages by number.

    If the request has the parameter ``page``, the answer has its list as ``items``, too, and ``pagination`` has
    ``page`` and ``per_page``, as in the admin API.
    """

    @wraps(handler)
    async def answer(request: HttpRequest) -> Answer:
        answer = await handler(request)
        if "page" in request.query:
            answer.body = _with_items(answer.body)
        return answer

    return answer


def _with_items(body: bytes) -> bytes:
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    shown_list = next(value for value in members.values() if bytes(value)[:1] == b"[")
    shown = msgspec.json.decode(members["pagination"])
    if (limit := shown.get("limit")) is not None:
        shown |= {"page": shown["offset"] // limit + 1, "per_page": limit}
    members["pagination"] = msgspec.Raw(msgspec.json.encode(shown))
    return msgspec.json.encode(members | {"items": shown_list})


def pagination(
    total: int, limit: int, offset: int, next_before: int | None, *, is_complete: bool = True
) -> PaginationBody:
    """Return the ``pagination`` object of a list with a cursor; ``next_before``: where the next page begins.

    Spec: ojs-http-binding 17.2
    """
    cursor = UNSET if next_before is None else str(next_before)
    return PaginationBody(total, limit, offset, next_before is not None, cursor, UNSET if is_complete else False)


def offset_page_of(query: Mapping[str, str], *, default: int = 50) -> tuple[int, int]:
    """Return ``limit`` and the offset of a page of a short list, whose cursors are offsets. Raises as ``page_of``."""
    limit, offset, position = page_of(query, default=default)
    return limit, offset if position is None else position


def offset_pagination(total: int, limit: int, offset: int) -> PaginationBody:
    """Return the ``pagination`` object of a short list.

    Spec: ojs-http-binding 17.2
    """
    following = offset + limit
    has_more = following < total
    return PaginationBody(total, limit, offset, has_more, str(following) if has_more else UNSET)
