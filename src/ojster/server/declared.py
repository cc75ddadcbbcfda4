"""Endpoints of declared calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from ojster.core.calls import Arguments, Calls, Declared, Deletion, Listing, NumberedListing, calls_of
from ojster.server.answer import Answer, encode
from ojster.server.pages import numbered_page, numbered_pagination, offset_page_of, offset_pagination
from ojster.server.request import Handler, HttpRequest
from ojster.server.route import BASE, NUMBERED_PAGE, PAGE, Route
from ojster.service import Service

C = TypeVar("C", bound=Calls)

_PAGES: Final[Mapping[type[Any], tuple[str, ...]]] = {Listing: PAGE, NumberedListing: NUMBERED_PAGE}
"""Query parameters of lists."""

Method = Callable[..., Awaitable[Any]]


def endpoints_of(
    calls: type[C], part: Callable[[Service], C], by_hand: Mapping[Method, Handler] = MappingProxyType({})
) -> tuple[Route, ...]:
    """Return the endpoints of the calls that a class declares.

    Parameters
    ----------
    calls:
        The class.
    part:
        Returns the part of a service that implements them.
    by_hand:
        Handlers of those that are written by hand, by the declared method.
    """
    handlers = {method.__name__: handler for method, handler in by_hand.items()}
    routes = []
    for declared in calls_of(calls):
        handler = handlers[declared.name] if declared.name in handlers else _handler(declared, part)
        handler.__name__, handler.__doc__ = declared.call.id, declared.description
        routes += [_route(declared, path, handler) for path in (declared.call.path, *declared.call.also)]
    return tuple(routes)


def _route(declared: Declared, path: str, handler: Handler) -> Route:
    call = declared.call
    return Route(
        call.method,
        BASE + path,
        handler,
        call.tag,
        call.body,
        call.documented or call.answer,
        call.status,
        call.more,
        query=(*declared.in_query, *call.query, *_PAGES.get(type(call), ())),
        large=call.large,
        may_be_empty=call.may_be_empty,
        for_all=call.for_all,
        configures=call.configures,
        needs=call.needs,
    )


def _handler(declared: Declared, part: Callable[[Service], Calls]) -> Handler:
    call = declared.call
    decoder = None if declared.body is None else msgspec.json.Decoder(declared.body)

    async def handle(request: HttpRequest) -> Answer:
        path = dict(zip(declared.in_path, request.path.values(), strict=True))
        arguments = path | declared.read_query(request.query)
        if decoder is not None:
            arguments |= await _arguments(request, decoder, may_be_empty=call.may_be_empty)
        value = await getattr(part(request.service), declared.name)(**arguments)
        if isinstance(call, Deletion):
            return Answer(encode(call.answer(*path.values())))
        if isinstance(call, NumberedListing):
            page = numbered_page(request.query)
            entries = value[page.offset : page.offset + page.size]
            return Answer(encode(call.answer.of(entries, numbered_pagination(page, len(value)))))
        if isinstance(call, Listing):
            limit, offset = offset_page_of(request.query, default=call.page_size)
            pagination = offset_pagination(len(value), limit, offset)
            return Answer(encode(call.answer.of(value[offset : offset + limit], pagination)))
        return Answer(encode(call.answer.of(value)), call.status)

    return handle


async def _arguments(
    request: HttpRequest, decoder: msgspec.json.Decoder[Arguments], *, may_be_empty: bool
) -> Mapping[str, Any]:
    raw = await request.body(may_be_missing=may_be_empty)
    if may_be_empty and not raw.strip():
        return {}
    return request.decode(raw, decoder).arguments(request.service.database.clock())
