"""What can go wrong between a client and a broker, as exceptions that a reader can act on.

Three kinds: the broker cannot be reached (`Unreachable`), it refused (`BrokerError`, named as Kafka
names the code), or it cannot do what was asked (`Unsupported`, `DataLost`).
Source of names and of what may be tried again: Kafka's Errors.java, by way of kio.
"""

from kio.schema.errors import ErrorCode

_REMEDIES = {
    ErrorCode.unknown_topic_or_partition: "create the topic, or correct its name",
    ErrorCode.offset_out_of_range: "the log no longer has, or not yet has, that offset",
    ErrorCode.invalid_group_id: "the name belongs to a group of another type, or is empty",
    ErrorCode.fenced_member_epoch: (
        "another driver runs this checkpoint; stop one of the two, or give each its own checkpoint"
    ),
    ErrorCode.unknown_member_id: (
        "the broker does not know the session in this checkpoint (another broker, or a new data "
        "folder?); start with a new checkpoint to read on from the group's position"
    ),
    ErrorCode.topic_already_exists: "use it, or delete it first",
}


class ClientError(Exception):
    """The base of all errors that the client raises on purpose."""


class Unreachable(ClientError):
    """No broker answered within the time allowed for trying again."""


class Unsupported(ClientError):
    """The broker does not offer an API, or no version of it that this client speaks."""


class DataLost(ClientError):
    """Records that were promised are not in the log any more; names the offsets."""


class BrokerError(ClientError):
    """The broker refused. `code` is Kafka's number, `name` its name, e.g. FENCED_MEMBER_EPOCH."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        self.code = code
        self.name = _name(code)
        remedy = _REMEDIES.get(_known(code))
        told = "; ".join(part for part in (message, remedy) if part)
        super().__init__(f"{what}: {self.name}" + (f": {told}" if told else ""))

    @property
    def retriable(self) -> bool:
        """Whether Kafka's clients would ask again. A missing topic is told at once instead."""
        known = _known(self.code)
        return known.retriable and known is not ErrorCode.unknown_topic_or_partition


def _known(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error


def _name(code: int) -> str:
    known = _known(code)
    return known.name.upper() if known == code else f"error {code}"


def check(code: int, what: str, message: str | None = None) -> None:
    """Raise `BrokerError` unless `code` is 0; `what` says what was being done."""
    if code:
        raise BrokerError(code, what, message)
