"""Endpoints of declared calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from ojster.core.calls import Calls, Declared, Deletion, Listing, NumberedListing, calls_of, declared_by
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
        recent=call.recent,
        may_be_empty=call.may_be_empty,
        for_all=call.for_all,
        configures=call.configures,
        needs=call.needs,
    )


def _handler(declared: Declared, part: Callable[[Service], Calls]) -> Handler:
    call = declared.call

    async def handle(request: HttpRequest) -> Answer:
        value = await getattr(part(request.service), declared.name)(**await _arguments(request, declared))
        if isinstance(call, Deletion):
            return Answer(encode(call.answer(*request.path.values())))
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


async def arguments_of(request: HttpRequest, method: Method) -> dict[str, Any]:
    """Return the arguments of a declared method in a request, for an endpoint that is written by hand.

    Raises
    ------
    InvalidRequest
        One of them is missing, or is malformed.
    """
    return await _arguments(request, declared_by(method))


async def _arguments(request: HttpRequest, declared: Declared) -> dict[str, Any]:
    clock, may_be_empty = request.service.database.clock, declared.call.may_be_empty
    parameters = dict(zip(declared.in_path, request.path.values(), strict=True))
    parameters |= declared.read_query(request.query, clock)
    if declared.decoder is not None:
        raw = await request.body(may_be_missing=may_be_empty)
        if raw.strip() or not may_be_empty:
            parameters |= request.decode(raw, declared.decoder).arguments(clock())
    return declared.folded(parameters)
