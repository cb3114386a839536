"""Asks a broker by an API of Headrace's own, whose messages are structs (`wire/structs.py`)."""

from typing import Protocol, Self, TypeVar

from headrace.client.connection import Address, Cluster
from headrace.client.errors import check
from headrace.wire.primitives import Reader, Writer
from headrace.wire.structs import Struct


class Told(Protocol):
    """An answer that says whether the broker refused."""

    @property
    def error_code(self) -> int: ...

    @property
    def error_message(self) -> str | None: ...

    @classmethod
    def read(cls, source: Reader) -> Self: ...


Answer = TypeVar("Answer", bound=Told)


def ask_own(
    cluster: Cluster,
    address: Address | None,
    api: tuple[int, int],
    request: Struct,
    answer: type[Answer],
    what: str,
) -> Answer:
    """The answer of the broker at `address`, None for any, to API and version `api`; not repeated.

    Raises: `BrokerError` when it refuses, telling `what` was asked; as `Cluster.exchange`.
    """
    out = Writer()
    request.write(out)
    key, version = api
    found = answer.read(cluster.exchange(address, key, version, out.data, flexible=True))
    check(found.error_code, what, found.error_message)
    return found
