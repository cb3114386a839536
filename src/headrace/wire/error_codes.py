"""Kafka's error codes, as kio has them; clients and tools compare by name."""

# isort: off
import headrace.wire.schemas  # noqa: F401  # first: it keeps kio from importing hypothesis
from kio.schema.errors import ErrorCode
# isort: on

__all__ = ["ErrorCode"]
