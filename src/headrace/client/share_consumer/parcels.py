"""What a request says of records: verdicts on offsets, and those of one partition as a parcel."""

from dataclasses import dataclass
from typing import Any

from headrace.client.errors import BrokerError, ClientError
from headrace.client.share_consumer.records import Acknowledgement, BaseRecord
from headrace.client.share_consumer.words import AcknowledgeResult, LockLost, Place, Verdict

INVALID_RECORD_STATE, INVALID_REQUEST = 121, 42
MOVED = frozenset({6, 74, 124})  # the leader is another now, and knows no locks of before
# Nothing was done, and may be asked again: loading, no coordinator, a storage fault, time out.
AGAIN = frozenset({7, 14, 15, 16, 56})


@dataclass(slots=True)
class Saying:
    """One verdict on `first` to `last`; without a record it is on offsets that nobody saw."""

    first: int
    last: int
    verdict: Verdict
    reason: str | None = None
    record: BaseRecord | None = None
    answer: Acknowledgement | None = None

    def result(self, error: ClientError | None) -> AcknowledgeResult:
        """What users are told of it. For verdicts on records."""
        of, verdict = self.record, self.verdict.name.lower()
        assert of is not None, "nobody saw what it is about"
        return AcknowledgeResult(of.topic, of.partition, self.first, self.last, verdict, error)


@dataclass(slots=True)
class Parcel:
    """What one request says of one partition, in the order of the offsets."""

    place: Place
    sayings: list[Saying]

    def batches(self) -> list[dict[str, Any]]:
        """Neighbours of one verdict and reason together, as the request has them."""
        found: list[dict[str, Any]] = []
        for one in self.sayings:
            said = (int(one.verdict),)
            before = found[-1] if found else None
            if (
                before is not None
                and before["last_offset"] + 1 == one.first
                and (before["acknowledge_types"], before["reason"]) == (said, one.reason)
            ):
                before["last_offset"] = one.last
            else:
                found.append(
                    {
                        "first_offset": one.first,
                        "last_offset": one.last,
                        "acknowledge_types": said,
                        "reason": one.reason,
                    }
                )
        return found

    @property
    def can_be_cut(self) -> bool:
        return len(self.sayings) > 1

    def halves(self) -> tuple["Parcel", "Parcel"]:
        """The same in two parcels."""
        middle = len(self.sayings) // 2
        return Parcel(self.place, self.sayings[:middle]), Parcel(self.place, self.sayings[middle:])

    @property
    def where(self) -> str:
        """The offsets from the first to the last, for people."""
        record = self.sayings[0].record
        first, last = self.sayings[0].first, self.sayings[-1].last
        topic = record.topic if record is not None else self.place[0]
        offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
        return f"{topic}-{self.place[1]} {offsets}"

    def error(self, code: int, message: str | None) -> ClientError | None:
        """What a code of the broker means for it."""
        if code == 0:
            return None
        if code == INVALID_RECORD_STATE or code in MOVED:
            return self.lost(f"the lock was lost ({message})" if message else "the lock was lost")
        return BrokerError(code, f"acknowledging {self.where}", message)

    def lost(self, why: str) -> LockLost:
        """The error of verdicts that came too late, or whose answer did not come."""
        return LockLost(f"{self.where}: {why}; delivered again unless finished before", why)
