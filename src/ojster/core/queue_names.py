"""Names under which the jobs of a queue are counted and announced: the queue's own, and that of a tenant in it."""

from __future__ import annotations

from functools import lru_cache

from ojster.core.tenant import ALL_TENANTS, DEFAULT_TENANT, NOBODY, qualify, split


@lru_cache(maxsize=4096)
def names_counted(queue: str, tenant: str) -> tuple[str, ...]:
    """Return the names under which a job is counted, and announced when it becomes available."""
    return (queue, qualify(tenant, queue)) if tenant else (queue,)


def names_opened(queue: str) -> tuple[str, str]:
    """Return the names to announce when jobs of any tenant may have become claimable in a queue."""
    return queue, qualify(ALL_TENANTS, queue)


@lru_cache(maxsize=4096)
def names_heard(name: str) -> tuple[str, ...]:
    """Return the names whose announcements concern a fetch from a queue; its own is the first.

    Parameters
    ----------
    name:
        The queue, qualified for a fetch of one tenant's jobs; ``DEFAULT_TENANT``: of the jobs without a tenant.
    """
    tenant, queue = split(name)
    if tenant == NOBODY:
        return (name,)
    names = (name, qualify(ALL_TENANTS, queue))
    return (*names, queue) if tenant == DEFAULT_TENANT else names


def name_of_type(type: str) -> str:
    """Return the name under which the work of a job type is counted, beside the names of queues."""
    return f"/type/{type}"
