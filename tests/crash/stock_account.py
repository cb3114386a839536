"""The account of stock clients whose broker is killed: what was acknowledged, and what is read.

One idempotent producer alone writes to a partition, and numbers its records from 0. So record n is
at offset n, whatever was retried: a lost record makes the following offsets too low, a duplicate
makes them too high, and a change of order both. Compaction keeps the offsets of what it keeps.
"""

import threading
from collections.abc import Iterable, Mapping

Place = tuple[str, int]
NONE = -1  # in place of an offset that was never committed
_KEYS, _RARE_KEYS = 12, 100
_FAILURES_MAX = 1_000


def key_of(number: int) -> bytes:
    """Return the key of a record: of most keys there are many, and of a few hardly any."""
    if number % 5 == 0:
        return b"rare-%d" % (number // 5 % _RARE_KEYS)
    return b"key-%d" % (number * number // 7 % _KEYS)


def value_of(number: int) -> bytes:
    """Return the value of a record, large enough for segments to fill."""
    return (b"%d." % number).ljust(200, b".")


class StockAccount:
    """Records, positions and commits as clients know them.

    Methods that begin with `check` add to `failures` what does not fit.
    """

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._lock = threading.RLock()
        self._sent: dict[Place, int] = {}
        self._acknowledged: dict[Place, int] = {}  # all records below it
        self._newest: dict[Place, dict[bytes, int]] = {}  # by key
        # Offsets of groups: the highest one acknowledged, and the highest one ever sent.
        self._committed: dict[tuple[str, Place], int] = {}
        self._requested: dict[tuple[str, Place], int] = {}

    def add_failure(self, failure: str) -> None:
        """Note a failure; of very many the first ones."""
        with self._lock:
            if len(self.failures) < _FAILURES_MAX:
                self.failures.append(failure)

    # ---- records

    def next_number(self, place: Place) -> int:
        """Return the number of the next record of a partition."""
        with self._lock:
            number = self._sent.get(place, 0)
            self._sent[place] = number + 1
            return number

    def sent(self, place: Place) -> int:
        """Return how many records were sent to a partition."""
        with self._lock:
            return self._sent.get(place, 0)

    def acknowledged(self) -> Mapping[Place, int]:
        """Return how many records of each partition are acknowledged."""
        with self._lock:
            return dict(self._acknowledged)

    def newest(self, place: Place) -> Mapping[bytes, int]:
        """Return the number of the newest acknowledged record of each key."""
        with self._lock:
            return dict(self._newest.get(place, {}))

    def check_acknowledged(self, place: Place, offset: int, key: bytes, value: bytes) -> None:
        """Add an acknowledged record."""
        self.check_record(place, offset, key, value, "acknowledged")
        with self._lock:
            self._acknowledged[place] = offset + 1
            self._newest.setdefault(place, {})[key] = offset

    def check_record(
        self, place: Place, offset: int, key: bytes | None, value: bytes | None, source: str
    ) -> None:
        """Compare a record with the one that was sent as number `offset`."""
        if (key, value) != (key_of(offset), value_of(offset)):
            number = (value or b"").split(b".")[0].decode()
            kind = "lost or out of order"
            if number.isdecimal() and int(number) < offset:
                kind = "duplicate or out of order"
            self.add_failure(f"{place}: {source} record {number} at offset {offset}: {kind}")

    def check_end(self, place: Place, before: int, end: int) -> None:
        """Compare the end of a log with the records acknowledged before the end was requested."""
        if end < before:
            self.add_failure(f"{place}: {before} records acknowledged, lost: the log ends at {end}")

    def check_newest(self, place: Place, before: Mapping[bytes, int], found: Iterable[int]) -> None:
        """Look in all that a compacted partition has for the newest values acknowledged before."""
        newest = {key_of(offset): offset for offset in sorted(found)}
        for key, offset in before.items():
            if newest.get(key, NONE) < offset:
                self.add_failure(f"{place}: newest record {offset} of {key!r} is not there")

    # ---- groups

    def committed(self, group: str) -> dict[Place, int]:
        """Return the offsets of a group that were acknowledged."""
        with self._lock:
            return {place: at for (name, place), at in self._committed.items() if name == group}

    def committing(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Note offsets that are about to be sent: they are in doubt."""
        with self._lock:
            for place, offset in offsets.items():
                before = self._requested.get((group, place), NONE)
                self._requested[group, place] = max(before, offset)

    def add_commits(self, group: str, offsets: Mapping[Place, int]) -> None:
        """Note offsets that the broker acknowledged."""
        with self._lock:
            for place, offset in offsets.items():
                before = self._committed.get((group, place), NONE)
                self._committed[group, place] = max(before, offset)

    def check_commit(self, group: str, place: Place, before: int, found: int) -> None:
        """Compare what the broker has with the commit acknowledged before it was requested."""
        with self._lock:
            highest = self._requested.get((group, place), NONE)
        if found < before:
            self.add_failure(f"{group} {place}: committed {before}, went back to {found}")
        if found > highest:
            self.add_failure(f"{group} {place}: committed {found}, never sent above {highest}")

    def check_start(self, group: str, place: Place, before: int, offset: int) -> None:
        """Compare where a member begins with the commits: a higher offset skips records."""
        with self._lock:
            highest = max(self._requested.get((group, place), 0), 0)
        if offset < before:
            self.add_failure(f"{group} {place}: begins at {offset}, committed was {before}")
        if offset > highest:
            self.add_failure(f"{group} {place}: begins at {offset}, skipped from {highest}")

    def check_next(self, group: str, place: Place, position: int, offset: int) -> None:
        """Compare a record with the one before it: a member gets every offset in turn."""
        if offset != position:
            self.add_failure(f"{group} {place}: got {offset}, skipped or repeated: not {position}")
