"""The JSON of requests and answers about collections."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from ojster.collections.items import Item
from ojster.collections.named import Collection
from ojster.core.calls import Arguments, Single
from ojster.core.declared_options import described_by


@described_by(Collection)
class CollectionBody(Arguments, forbid_unknown_fields=True):
    """A named collection."""

    name: str
    description: Annotated[str, Meta(max_length=10_000)] | None = None
    keep_removed: str | None = None
    shared: bool = False


@described_by(Collection)
class CollectionChangeBody(Arguments, forbid_unknown_fields=True):
    """Settings of a named collection to change; others stay as they are."""

    description: Annotated[str, Meta(max_length=10_000)] | UnsetType | None = UNSET
    keep_removed: str | UnsetType | None = UNSET
    shared: bool | UnsetType = UNSET


class ItemBody(Struct, forbid_unknown_fields=True):
    """An item to put into a collection.

    Parameters
    ----------
    data:
        Its data, any JSON.
    category:
        Its category.
    replace:
        Whether it replaces an item of the same name.
    file:
        Id of a file, which makes the item an artifact.
    filename, content_type:
        Name of the file in the item, and its media type.
    worker_id, attempt:
        Worker that must hold the lease of the job, and attempt that the job must be in.
    """

    name: str
    data: Raw | UnsetType = UNSET
    category: Annotated[str, Meta(max_length=255)] | None = None
    replace: bool = False
    file: str | None = None
    filename: str | None = None
    content_type: str | None = None
    worker_id: str | None = None
    attempt: int | None = None


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
