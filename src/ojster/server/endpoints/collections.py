"""Endpoints for collections: named ones, and those of workflows."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from ojster.collections.calls import CollectionCalls
from ojster.collections.items import DATA_QUERY, ITEM_QUERY, Matching, NewItem, Where
from ojster.collections.wire import (
    ITEM,
    ItemAnswer,
    ItemBody,
    ItemsAnswer,
)
from ojster.core.access import CANCEL_OR_DEQUEUE, DEQUEUE
from ojster.core.errors import InvalidRequest, NotFound
from ojster.jobs.messages import Holder
from ojster.server.answer import Answer, encode
from ojster.server.declared import endpoints_of
from ojster.server.pages import flag, object_of
from ojster.server.request import HttpRequest
from ojster.server.route import BASE, Route


async def add_item(request: HttpRequest) -> Answer:
    """Add an item to a collection under a unique name, or with ``replace`` in place of an existing item.

    With ``job_id``, use the named collection of that job's workspace.
    """
    body = await request.read(ITEM)
    data = b"null" if body.data is UNSET else bytes(body.data)
    item = NewItem(body.name, data, body.category, body.replace, body.file, body.filename, body.content_type)
    return Answer(
        encode(ItemAnswer(await request.service.collections.add(_where(request, body.worker_id, body.attempt), item))),
        201,
    )


async def list_items(request: HttpRequest) -> Answer:
    """List the items of a collection in the order of addition; with ``history=true`` also removed and replaced items.

    ``data`` is a JSON object whose members and values an item's data must contain; ``data_startswith``,
    ``data_endswith`` and ``data_contains`` are JSON objects with parts of strings in it. The answer has at most 1,001
    items.
    """
    query = request.query
    name, start, end, part, category = (query.get(name) for name in ITEM_QUERY[:5])
    on_data: dict[str, Any] = {name: object_of(query, name) for name in DATA_QUERY}
    for name_of_part in DATA_QUERY[1:]:
        if not all(isinstance(value, str) for value in on_data[name_of_part].values()):
            raise InvalidRequest(f"The values in {name_of_part!r} must be strings.", field=name_of_part)
    matching = Matching(name, start, end, part, category, **on_data)
    items = await request.service.collections.items(_where(request), matching, history=flag(query, "history"))
    return Answer(encode(ItemsAnswer(items)))


async def show_item(request: HttpRequest) -> Answer:
    """Show an item of a collection."""
    name = request.path["item"]
    items = await request.service.collections.items(_where(request), Matching(name))
    if not items:
        raise NotFound(f"The collection has no item {name!r}.", resource_type="item", resource_id=name)
    return Answer(encode(ItemAnswer(items[0])))


async def remove_item(request: HttpRequest) -> Answer:
    """Remove an item from a collection. Its history keeps the item."""
    item = await request.service.collections.remove(_where(request), request.path["item"])
    return Answer(encode(ItemAnswer(item)))


def _where(request: HttpRequest, worker_id: str | None = None, attempt: int | None = None) -> Where:
    path = request.path
    job_id = path.get("job") or request.query.get("job_id")
    holder = None if job_id is None else Holder(job_id, worker_id, attempt)
    return Where(path.get("name"), path.get("id"), None if "id" in path else job_id, holder)


_TAG: Final = "Collections"

ROUTES: Final = (
    *endpoints_of(CollectionCalls, lambda service: service.collections),
    *(
        route
        for base, of_readers, query, writers in (
            (f"{BASE}/collections/{{name}}", ("job_id",), ("job_id",), CANCEL_OR_DEQUEUE),
            (f"{BASE}/workflows/{{id}}", (), ("job_id",), CANCEL_OR_DEQUEUE),
            (f"{BASE}/jobs/{{job}}", (), (), DEQUEUE),
        )
        for route in (
            Route("GET", f"{base}/items", list_items, _TAG, answer=ItemsAnswer, query=(*ITEM_QUERY, *of_readers)),
            Route(
                "POST", f"{base}/items", add_item, _TAG, ItemBody, ItemAnswer, status=201, query=query, needs=writers
            ),
            Route("GET", f"{base}/items/{{item}}", show_item, _TAG, answer=ItemAnswer, query=of_readers),
            Route("DELETE", f"{base}/items/{{item}}", remove_item, _TAG, answer=ItemAnswer, query=query, needs=writers),
        )
    ),
)
