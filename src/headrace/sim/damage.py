"""Damage to the files of a simulated disk: bit rot, lost and misdirected writes, missing files.

A disk is damaged while no broker runs, or under a running one. Only bytes that a broker has to
notice are damaged: all of them after an orderly stop; otherwise, and of logs that the mark of the
stop does not name, small files and the part of a log that its recovery point claims, because more
may be torn. A copy of each damaged file stands for the backup of an operator.

A write that is lost leaves zeros at the end of a file, and the former bytes of a file that is
written in place or replaced: at times they are whole, and nothing shows that they are old. A write
that went to a wrong place is also lost at its own.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from random import Random
from typing import Any

from headrace.log.recovery_point import NAME as RECOVERY_POINT

BIT, LOST, MISDIRECTED, SHORT = "bit", "lost write", "misdirected write", "short"
MISSING, MISSING_FOLDER = "missing", "missing folder"
KINDS = (BIT, BIT, LOST, MISDIRECTED, SHORT, MISSING, MISSING_FOLDER)
FORMER = f"{LOST}, former bytes"
_LIVE_KINDS = (BIT, BIT, LOST, MISDIRECTED)
BLOCK_BYTES = 64  # what one write covers; small, as simulated batches are
CLEAN_MARK = ".kafka_cleanshutdown"
_LEFT_ALONE = (".torn", "-stray", "-delete", ".deleted", ".cleaned", ".swap", ".new")
_FORMER = 0.5  # of the lost writes to files that had other bytes before
_OFFSETS_SPARED = 0.5  # of the times at which one may be damaged
_LENGTH = struct.Struct(">i")
_LENGTH_AT, _LENGTH_LESS, _OFFSET_BYTES = 8, 12, 8


class Damage:
    """Damages files, and knows which of them are still damaged.

    Args:
        name: what damage is drawn from.
        files: the files of the disk, by path.
        replaced: puts a file with these bytes in the place of one.
        claimed: bytes of logs that a recovery point claims, by path.
        former: bytes of files before they were last written in place or replaced, by path.

    Attributes:
        kinds: what may be drawn.
        spared: files that are not damaged.
        is_live: whether the damage was done under the broker that runs now.
        turned_back: the file that has former bytes by the last damage, if any.
    """

    def __init__(
        self,
        name: str,
        files: MutableMapping[str, Any],
        replaced: Callable[[str, bytes], None],
        claimed: MutableMapping[str, int],
        former: Mapping[str, bytes],
    ) -> None:
        self.kinds: tuple[str, ...] = KINDS
        self.spared: frozenset[str] = frozenset()
        self.is_live = False
        self.turned_back = ""
        self._rng = Random(f"{name}/damage")
        self._losses = Random(f"{name}/lost-writes")
        self._files = files
        self._replaced = replaced
        self._claimed = claimed
        self._former = former
        self._copies: dict[str, bytes] = {}  # files as they were
        self._damaged: dict[str, bytes | None] = {}  # and as the damage left them, None for gone

    @property
    def standing(self) -> list[str]:
        """Return the damaged files that no broker rebuilt, replaced or removed since."""
        return [path for path in self._copies if self._stands(path)]

    @property
    def gone(self) -> list[str]:
        """Return the damaged files that were removed since."""
        return [path for path in self._copies if path not in self._files and not self._stands(path)]

    @property
    def sound(self) -> dict[str, bytes]:
        """Return all files without the damage."""
        found = {path: bytes(one.data) for path, one in self._files.items()}
        return found | {path: self._restored(path) for path in self.standing}

    def offline(self, *, in_order: bool) -> str | None:
        """Damage what the next broker reads.

        Args:
            in_order: the broker stopped in order, so that every byte of every file counts.

        Returns:
            What was done; None when there is nothing to damage.
        """
        self.is_live = False
        sizes = {path: self._size(path, in_order) for path in sorted(self._files)}
        kind = self._rng.choice(self.kinds)
        if kind == MISSING_FOLDER:
            return self._remove_folder(in_order)
        return self._damage({path: size for path, size in sizes.items() if size > 0}, kind)

    def live(self, topics: Iterable[str]) -> str | None:
        """Damage a small file, or what is claimed of the logs of some topics."""
        sizes = self._live_sizes(topics)
        sizes |= {
            path: self._size(path, in_order=False)
            for path in sorted(self._files)
            if "/" not in path and self._size(path, in_order=False) > 0
        }
        kinds = [one for one in _LIVE_KINDS if one in self.kinds]
        if not kinds:
            return None
        done = self._damage(
            dict(sorted(sizes.items())), self._rng.choice(kinds), spare_offsets=True
        )
        self.is_live = done is not None
        return done

    def live_offset(
        self, topics: Iterable[str], is_unread: Callable[[str, int], bool]
    ) -> str | None:
        """Damage the offset of a batch that the broker verifies before it serves it.

        No client can verify an offset, so that a broker has to find the damage.

        Args:
            is_unread: returns whether a byte of a file was not read since the start of the broker.
        """
        if BIT not in self.kinds:
            return None
        found = [
            (path, begin)
            for path, size in self._live_sizes(topics).items()
            for begin, _ in _batches(bytes(self._files[path].data[:size]))
            if is_unread(path, begin)
        ]
        if not found or self._rng.random() < _OFFSETS_SPARED:
            return None
        path, begin = self._rng.choice(found)
        done = self._damage_at(BIT, path, begin + self._rng.randrange(_OFFSET_BYTES), {})
        self.is_live = done is not None
        return done

    def _live_sizes(self, topics: Iterable[str]) -> dict[str, int]:
        prefixes = tuple(f"{name}-" for name in topics)
        sizes = {
            path: self._size(path, in_order=False)
            for path in sorted(self._files)
            if path.startswith(prefixes)
        }
        return {path: size for path, size in sizes.items() if size > 0}

    def undo(self) -> str:
        """Restore what is still damaged from the copies; return the names of the files.

        What the broker appended to a damaged file since is kept behind the copy.
        """
        standing = self.standing
        for path in standing:
            self._replaced(path, self._restored(path))
        self.forget()
        return ", ".join(standing)

    def undo_file(self, path: str) -> None:
        """Restore one damaged file from its copy; a write that is misdirected damages two."""
        self._replaced(path, self._restored(path))
        del self._copies[path], self._damaged[path]
        self.is_live = self.is_live and bool(self._copies)

    def renamed(self, old: str, new: str) -> None:
        """Follow a file that gets back the name that it had."""
        if old in self._copies:
            self._copies[new], self._damaged[new] = self._copies.pop(old), self._damaged.pop(old)

    def started(self) -> None:
        """Take the mark of an orderly stop for sound: a start removes it in any case."""
        self._copies.pop(CLEAN_MARK, None)
        self._damaged.pop(CLEAN_MARK, None)

    def forget(self) -> None:
        """Take what is damaged for repaired."""
        self._copies.clear()
        self._damaged.clear()
        self.is_live = False

    def lose_claims(self) -> None:
        """Restore what only the recovery point of an open log shows, which a power cut may take.

        Damage that a whole batch follows is no torn end, whatever is claimed, and stays.
        """
        if not self.is_live:
            return
        for path in self.standing:
            folder = path.rpartition("/")[0]
            logs = [one for one in self._files if one.startswith(f"{folder}/") and _is_log(one)]
            if path != max(logs, default=""):
                continue
            copy, damaged = self._copies[path], self._damaged[path]
            synced = self._files[path].synced
            if damaged is not None and _is_followed(copy[:synced], damaged[:synced]):
                continue
            self._replaced(path, self._restored(path))
            del self._copies[path]

    def lose_ends(self) -> None:
        """Forget the unsynced ends of damaged logs, which a power cut may take or change."""
        for path in filter(_is_log, self.standing):
            if path in self._files:
                self.cut(path, self._files[path].synced)

    def cut(self, path: str, size: int) -> None:
        """Forget the end of a damaged file that is cut to a size, as after a failed sync."""
        damaged = self._damaged.get(path)
        if damaged is not None and size < len(damaged):
            self._copies[path], self._damaged[path] = self._copies[path][:size], damaged[:size]

    # ---- what may be damaged

    def _size(self, path: str, in_order: bool) -> int:
        """How many bytes of a file, from its start, have to be what they were; 0 for none."""
        is_hidden = path.startswith(".") and path != CLEAN_MARK
        if any(mark in path for mark in _LEFT_ALONE) or is_hidden or path in self.spared:
            return 0
        in_order = in_order and self._is_closed(path)
        size = len(self._files[path].data)
        if path.endswith(".log") and not in_order:
            return min(self._claimed.get(path, 0), size)
        if path.endswith(f"/{RECOVERY_POINT}") and not in_order:
            return 0  # without a claim the end of the log counts as torn
        return size

    def _is_closed(self, path: str) -> bool:
        """Return whether the mark of an orderly stop names the log of a file.

        It does not name a log that was killed with one broker and refused by the next.
        """
        mark = self._files.get(CLEAN_MARK)
        return mark is None or f" {path.rpartition('/')[0]}\n".encode() in mark.data

    def _remove_folder(self, in_order: bool) -> str | None:
        """Remove a partition of a topic, of which something has to be there."""
        folders = sorted(
            {
                path.partition("/")[0]
                for path in self._files
                if path.endswith("/partition.metadata") and self._size(path, in_order) > 0
            }
        )
        if not folders:
            return None
        folder = self._rng.choice(folders)
        paths = [path for path in self._files if path.startswith(f"{folder}/")]
        self._copies = {path: bytes(self._files[path].data) for path in paths}
        self._damaged = dict.fromkeys(paths)
        for path in paths:
            del self._files[path]
            self._claimed.pop(path, None)
        return f"{MISSING_FOLDER}: {folder}"

    def _damage(
        self,
        sizes: dict[str, int],
        kind: str,
        *,
        spare_offsets: bool = False,
    ) -> str | None:
        if not sizes:
            return None
        rng = self._rng
        logs = [path for path in sizes if path.endswith(".log") and not path.startswith("__")]
        small = [path for path in sizes if "/" not in path or path.endswith(".metadata")]
        path = rng.choice(rng.choice([some for some in ([*sizes], logs, small) if some]))
        at = rng.randrange(sizes[path])
        if spare_offsets and kind == BIT and path.endswith(".log"):
            at = _behind_offset(bytes(self._files[path].data), at)
        if kind == FORMER or (kind == LOST and self._losses.random() < _FORMER):
            found = self._with_former_bytes(sizes)
            path, kind = (path, LOST) if found is None else (found, FORMER)
        return self._damage_at(kind, path, at, sizes)

    def _with_former_bytes(self, sizes: dict[str, int]) -> str | None:
        """Draw a file that had other bytes before; None when there is none.

        A recovery point may always be an older one, which claims less.
        """
        every = [
            path
            for path in sorted(self._former)
            if path in sizes or (path.endswith(f"/{RECOVERY_POINT}") and path in self._files)
        ]
        every = [path for path in every if self._has_former(path)]
        of_the_folder = [path for path in every if "/" not in path]
        choices = [some for some in (every, of_the_folder) if some]
        return self._losses.choice(self._losses.choice(choices)) if choices else None

    def _damage_at(self, kind: str, path: str, at: int, sizes: dict[str, int]) -> str | None:
        before = {path: bytes(self._files[path].data)}
        self.turned_back = ""
        done = f"{kind}: {path} at byte {at}"
        if kind == MISDIRECTED:
            source, source_at = self._source(sizes)
            before[source] = bytes(self._files[source].data)
            done += f", meant for {source} at byte {source_at}"
            lost = FORMER if self._has_former(source) else LOST
            self._apply(lost, source, source_at, sizes)
            block = before[source][source_at : source_at + min(BLOCK_BYTES, sizes[path] - at)]
            self._files[path].data[at : at + len(block)] = block
        else:
            self._apply(kind, path, at, sizes)
        for one in [one for one in before if one in self._files]:
            content = self._files[one]
            if content.data == before[one]:
                del before[one]  # as a block of zeros that is zeroed
            content.synced = min(content.synced, len(content.data))
        if not before:
            return None
        self._copies = before
        self._damaged = {
            one: bytes(self._files[one].data) if one in self._files else None for one in before
        }
        for one in before:
            self._forget_claims(one)
        return done

    def _forget_claims(self, path: str) -> None:
        """Claim nothing of a log whose recovery point is damaged."""
        if path.endswith(f"/{RECOVERY_POINT}"):
            folder = path.rpartition("/")[0]
            for name in [one for one in self._claimed if one.startswith(f"{folder}/")]:
                del self._claimed[name]

    def _has_former(self, path: str) -> bool:
        data = self._files[path].data
        return bool(self._former.get(path, data) != data)

    def _source(self, sizes: dict[str, int]) -> tuple[str, int]:
        """Draw the place that a write was meant for: a file, and a position in it."""
        path = self._rng.choice([*sizes])
        return path, self._rng.randrange(max(sizes[path] - BLOCK_BYTES, 0) + 1)

    def _apply(self, kind: str, path: str, at: int, sizes: dict[str, int]) -> None:
        data = self._files[path].data
        match kind:
            case "bit":
                data[at] ^= 1 << self._rng.randrange(8)
            case "lost write":
                end = min(at + BLOCK_BYTES, sizes[path])
                data[at:end] = bytes(end - at)
            case "lost write, former bytes":
                data[:] = self._former[path]
                self.turned_back = path
            case "short":
                del data[at:]
            case _:
                del self._files[path]

    # ---- what became of it

    def _stands(self, path: str) -> bool:
        now, damaged = self._files.get(path), self._damaged[path]
        if now is None or damaged is None:
            return now is None and damaged is None
        # A file that was cut short may have been written again.
        return now.data.startswith(damaged) and not now.data.startswith(self._copies[path])

    def _restored(self, path: str) -> bytes:
        now, damaged = self._files.get(path), self._damaged[path]
        tail = b"" if now is None or damaged is None else bytes(now.data[len(damaged) :])
        return self._copies[path] + tail


def _is_log(path: str) -> bool:
    return path.endswith(".log")


def _is_followed(copy: bytes, damaged: bytes) -> bool:
    """Return whether a whole batch of a log follows the last byte that is damaged."""
    last = max((at for at, byte in enumerate(copy) if damaged[at] != byte), default=-1)
    ends = [position + size for position, size in _batches(copy)]
    return sum(last < end <= len(copy) for end in ends) > 1


def _behind_offset(data: bytes, at: int) -> int:
    """Move a position out of the offset of a batch, which no client can verify."""
    begins = [start for start, size in _batches(data) if start <= at < start + size]
    return max([at, *(begin + _OFFSET_BYTES for begin in begins)])


def _batches(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield position and size of the batches of a log; the last may be cut short."""
    position = 0
    while position + _LENGTH_AT + _LENGTH.size <= len(data):
        size = _LENGTH.unpack_from(data, position + _LENGTH_AT)[0] + _LENGTH_LESS
        if size <= 0:
            return
        yield position, size
        position += size
