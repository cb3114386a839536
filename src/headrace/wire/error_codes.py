"""Kafka's error codes, as kio has them; clients and tools compare by name."""

from kio.schema.errors import ErrorCode

import headrace.wire.schemas  # noqa: F401  # first: it keeps kio from importing hypothesis

__all__ = ["ErrorCode"]
