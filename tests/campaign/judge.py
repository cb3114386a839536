"""What became of a broker on a damaged data folder, and whether that is allowed.

Allowed are: everything is as before; a refusal by one line that names the file, of the broker where
a journal or a file of the root is damaged, else of the partition alone; and, after a kill, records
above what was synced missing at the end of a log, with the bytes that were cut off kept.
"""

import asyncio
import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tests.campaign import account as accounts
from tests.campaign.account import Account, Key, Refused, StuckError
from tests.campaign.damage import Damage
from tests.campaign.data import Folder, disk_of
from tests.campaign.life import HungUpError, Life, recorded, run

from headrace.broker.services import StartError
from headrace.log.memory_disk import MemoryDisk
from headrace.wire import batches
from headrace.wire.batches import CorruptBatch

_CPU_SECONDS_MAX = 20  # a life takes a hundredth of a second
_SECONDS_MAX = 60
_JOURNALS = ("__cluster_metadata-", "__consumer_offsets-", "__share_group_state-")

EQUAL, REFUSED_BROKER, REFUSED_PARTITION, TORN = (
    "equal",
    "broker refused",
    "partition refused",
    "torn",
)
ALLOWED = (EQUAL, REFUSED_BROKER, REFUSED_PARTITION, TORN)
LOST, DIFFERENT, TRACEBACK, HANG, UNNAMED, TOO_MUCH, UNKEPT, LATER, SERVED = (
    "synced records gone without a refusal", "silent difference", "traceback", "hang",
    "refusal that does not name the file", "broker refused for a partition", "cut bytes not kept",
    "refused once only", "damaged batch served",
)  # fmt: skip


class HangError(Exception):
    """A life uses the processor for long and comes to no end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened, one of the names above, with what is known of it."""

    name: str
    detail: str = ""

    @property
    def is_allowed(self) -> bool:
        return self.name in ALLOWED


@dataclass(slots=True)
class Run:
    """One life on a disk: its account, or why there is none; and what was logged."""

    account: Account | None = None
    refusal: str = ""
    fault: Outcome | None = None
    logged: list[logging.LogRecord] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.logged]


def observe(disk: MemoryDisk, folder: Folder, *, probes: int = 3, stops: bool = False) -> Run:
    """Start a broker on a disk, take its account, and stop it in order or kill it."""
    found = Run()

    async def live() -> None:
        life = Life(disk, folder.settings)
        await life.start()
        await accounts.settled(life)
        found.account = await accounts.take(life, probes=probes)
        if stops:
            await life.stop()

    with recorded(found.logged):
        try:
            with _limited():
                run(asyncio.wait_for(live(), _SECONDS_MAX))
        except StartError as error:
            found.refusal = str(error)
        except (HangError, TimeoutError, StuckError) as error:
            found.fault = Outcome(HANG, str(error) or "no end")
        except CorruptBatch as error:  # raised by the client: the broker does not respond with it
            found.fault = Outcome(SERVED, str(error))
        except HungUpError:
            found.fault = Outcome(TRACEBACK, f"the broker hung up: {found.lines()[-1:]}")
        except Exception as error:
            found.fault = Outcome(TRACEBACK, f"{type(error).__name__}: {error}")
    disk.kill()
    for record in found.logged:
        if record.exc_info and found.fault is None:
            found.fault = Outcome(TRACEBACK, f"{record.getMessage()}: {record.exc_info[1]!r}")
    return found


class Judge:
    """Judges damages to one folder."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        sound = observe(folder.disk(), folder, probes=-1)
        assert sound.account is not None, (sound.refusal, sound.fault)
        self.account = sound.account
        self._cut: dict[str, list[Account]] = {}

    def judge(self, damage: Damage) -> Outcome:
        """Start on the damaged folder, twice where that changed something."""
        disk = disk_of(damage.files, self._synced(damage))
        thorough = "index" in damage.path  # which alone leads reads astray
        first = observe(disk, self._folder, probes=-1 if thorough else 2, stops=True)
        outcome = self._outcome(damage, first, disk)
        if outcome.name == EQUAL or not outcome.is_allowed or is_unchanged(disk, damage):
            return outcome
        again = observe(disk, self._folder, probes=2)
        if outcome.name == TORN and again.account is not None and first.account is not None:
            changed = accounts.differences(first.account, again.account)
            return Outcome(DIFFERENT, f"after a second start: {changed}") if changed else outcome
        repeated = self._outcome(damage, again, disk)
        if repeated.name != outcome.name:
            return Outcome(LATER, f"{outcome}, then {repeated}")
        return outcome

    def _synced(self, damage: Damage) -> dict[str, int]:
        return {
            path: min(n, len(damage.files.get(path, b"")))
            for path, n in self._folder.synced.items()
        }

    def _outcome(self, damage: Damage, found: Run, disk: MemoryDisk) -> Outcome:
        if found.fault is not None:
            return found.fault
        if found.refusal:
            return self._refusal(damage, found)
        assert found.account is not None
        differences = accounts.differences(self.account, found.account)
        if not differences:
            return Outcome(EQUAL)
        refused = [one for one in differences if isinstance(one[2], Refused)]
        if refused:
            return self._partition_refused(damage, found, differences)
        return self._torn(damage, found, disk, differences)

    def _refusal(self, damage: Damage, found: Run) -> Outcome:
        line = found.refusal
        if "\n" in line:
            return Outcome(TRACEBACK, line)
        if not any(_names(line, path) for path in _named(damage)):
            return Outcome(UNNAMED, line)
        if all(_is_partition(path) for path in _named(damage)):
            return Outcome(TOO_MUCH, line)
        return Outcome(REFUSED_BROKER, line)

    def _partition_refused(
        self, damage: Damage, found: Run, differences: Sequence[tuple[Key, Any, Any]]
    ) -> Outcome:
        folders = {path.rpartition("/")[0] or path for path in damage.paths}
        if damage.paths and "/" not in damage.path:
            folders.add(damage.path)
        # What knows offsets of all partitions, when damaged, can lead to any of them.
        anywhere = "/" not in damage.paths[0] if damage.paths else False
        for key, old, new in differences:
            place = key[1].rpartition(" ")[2]
            if not isinstance(new, Refused) and not (key[0] == "bounds" and new is None):
                return Outcome(DIFFERENT, f"{key}: {_short(old)} became {_short(new)}")
            if place not in folders and not anywhere:
                return Outcome(TOO_MUCH, f"{key}: {new}")
        lines = [
            record.getMessage() for record in found.logged if record.levelno >= logging.WARNING
        ]
        if not any(_names(line, path) for line in lines for path in _named(damage)):
            return Outcome(UNNAMED, " | ".join(lines) or "nothing was logged")
        if any("\n" in line for line in lines):
            return Outcome(TRACEBACK, " | ".join(lines))
        return Outcome(REFUSED_PARTITION, lines[0])

    def _torn(
        self,
        damage: Damage,
        found: Run,
        disk: MemoryDisk,
        differences: Sequence[tuple[Key, Any, Any]],
    ) -> Outcome:
        key, old, new = differences[0]
        what = f"{key}: {_short(old)} became {_short(new)}"
        path = damage.path
        is_tail = (
            not self._folder.is_clean
            and len(damage.paths) == 1
            and path.endswith(".log")
            and path in damage.files
            and damage.first_byte >= self._folder.synced[path]
        )
        if not is_tail:
            return Outcome(LOST if _is_shorter(differences) else DIFFERENT, what)
        if damage.keeps_bytes and self._valid_batch_follows(damage):
            return Outcome(LOST, f"valid batches follow the damage: {what}")
        assert found.account is not None
        if not any(
            not accounts.differences(_comparable(one), _comparable(found.account))
            for one in self._prefixes(path)
        ):
            return Outcome(DIFFERENT, f"no prefix of the log: {what}")
        if damage.keeps_bytes and not self._is_kept(damage, disk):
            return Outcome(UNKEPT, what)
        if not any(_names(line, path) for line in found.lines()) and damage.keeps_bytes:
            return Outcome(UNNAMED, what)
        return Outcome(TORN, what)

    def _valid_batch_follows(self, damage: Damage) -> bool:
        data, original = damage.files[damage.path], self._folder.files[damage.path]
        position = 0
        try:
            for header in batches.headers(original):
                if position >= damage.end_byte and data[position:] == original[position:]:
                    return True
                position += header.size
        except CorruptBatch:
            pass
        return False

    def _is_kept(self, damage: Damage, disk: MemoryDisk) -> bool:
        """Whether the damaged bytes and what followed them stand in some file."""
        data = damage.files[damage.path]
        wanted = data[damage.first_byte :]
        return any(wanted in one.data for one in disk._files.values())

    def _prefixes(self, path: str) -> list[Account]:
        """The accounts of the folder with the log cut after each batch that was not synced."""
        if path not in self._cut:
            data, synced = self._folder.files[path], self._folder.synced[path]
            ends = [synced]
            for header in batches.headers(data[synced:]):
                ends.append(ends[-1] + header.size)
            self._cut[path] = [
                found.account
                for end in ends
                if (found := self._cut_at(path, end)).account is not None
            ]
        return self._cut[path]

    def _cut_at(self, path: str, end: int) -> Run:
        files = {**self._folder.files, path: self._folder.files[path][:end]}
        return observe(disk_of(files, self._folder.synced), self._folder)


def is_unchanged(disk: MemoryDisk, damage: Damage) -> bool:
    """Whether a start left all files as they were, so that a second one would do the same."""
    return {path: one.data for path, one in disk._files.items()} == damage.files


def _comparable(account: Account) -> Account:
    return {key: value for key, value in account.items() if key[0] != "next producer id"}


def _named(damage: Damage) -> set[str]:
    """The files or folders one of which a refusal has to name."""
    return {damage.path, *damage.paths}


def _names(line: str, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    stem = name.partition(".")[0] if folder and not name.startswith(".") else name
    return path in line or (bool(folder) and folder in line) or (bool(stem) and stem in line)


def _is_partition(path: str) -> bool:
    return "/" in path and not path.startswith(_JOURNALS)


def _is_shorter(differences: Sequence[tuple[Key, Any, Any]]) -> bool:
    for (section, _), old, new in differences:
        if section == "log" and isinstance(old, list):
            is_shorter = not isinstance(new, list) or len(new) < len(old)
        else:
            is_shorter = section in ("topic", "offsets") and new is None
        if is_shorter:
            return True
    return False


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:100]}...{text[-50:]}"


@contextmanager
def _limited() -> Iterator[None]:
    """Raise HangError in a life that uses up its processor time."""

    def over(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise HangError(f"{_CPU_SECONDS_MAX} s of processor time are used up")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, _CPU_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
