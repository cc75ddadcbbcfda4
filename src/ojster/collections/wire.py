"""The JSON of requests and answers about collections."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.collections.items import Item
from ojster.collections.named import Collection
from ojster.core.calls import Arguments, Single

_KeepRemoved = Annotated[
    str,
    Meta(description="How long removed and replaced items are kept: an ISO 8601 duration, or 'never' to delete none."),
]


class CollectionBody(Arguments, forbid_unknown_fields=True):
    """A named collection."""

    name: str
    description: Annotated[str, Meta(max_length=10_000)] | None = None
    keep_removed: _KeepRemoved | None = None
    shared: Annotated[bool, Meta(description="Whether workspaces inside its workspace can read it.")] = False


class CollectionChangeBody(Arguments, forbid_unknown_fields=True):
    """Settings of a named collection to change; others stay as they are."""

    description: Annotated[str, Meta(max_length=10_000)] | UnsetType | None = UNSET
    keep_removed: _KeepRemoved | UnsetType | None = UNSET
    shared: bool | UnsetType = UNSET


class ItemBody(Struct, forbid_unknown_fields=True):
    """An item to put into a collection; with ``replace``, it replaces an item of the same name."""

    name: str
    data: Raw | UnsetType = UNSET
    category: Annotated[str, Meta(max_length=255)] | None = None
    replace: bool = False
    file: Annotated[str, Meta(description="Id of a file, which makes the item an artifact.")] | None = None
    filename: Annotated[str, Meta(description="Name of the file in the item.")] | None = None
    content_type: Annotated[str, Meta(description="Media type of the file.")] | None = None
    worker_id: Annotated[str, Meta(description="Worker that must hold the lease of the job.")] | None = None
    attempt: Annotated[int, Meta(description="Attempt that the job must be in.")] | None = None


class CollectionAnswer(Single[Collection]):
    """A named collection, as the member ``collection``."""

    collection: Collection


class CollectionsAnswer(Single[list[Collection]]):
    """The named collections."""

    collections: list[Collection]


class ItemAnswer(Struct):
    """An item, as the member ``item``."""

    item: Item


class ItemsAnswer(Struct):
    """Items of a collection."""

    items: list[Item]


ITEM: Final = msgspec.json.Decoder(ItemBody)
