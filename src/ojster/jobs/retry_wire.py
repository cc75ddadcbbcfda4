"""The JSON of requests and answers about retry policies."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from ojster.core.wire import (
    Count,
)


class RetryPolicyBody(Struct):
    """Maximum attempts and backoff of a job, and what happens when retries are exhausted.

    Spec: ojs-retry 2
    """

    max_attempts: Count = 3
    initial_interval: str = "PT1S"
    backoff_coefficient: Annotated[float, Meta(ge=1)] = 2.0
    max_interval: str = "PT5M"
    jitter: bool = True
    non_retryable_errors: list[str] = []
    on_exhaustion: Literal["discard", "dead_letter"] = "discard"
    backoff_strategy: Literal["exponential", "linear", "constant", "polynomial"] = "exponential"
