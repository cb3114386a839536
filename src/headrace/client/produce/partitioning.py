"""Which partition a row goes to, as Java's producer and Spark's Kafka sink have it.

A partition that the row names, else the one its key hashes to, else one that changes from write to
write. All keys of a write are hashed at once.
Source: Utils.murmur2, Utils.toPositive and BuiltInPartitioner (Kafka 4.3).
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int32s = npt.NDArray[np.int32]

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)
_POSITIVE = np.uint32(0x7FFFFFFF)
_WORD_BYTES = 4


class Partitioner:
    """Chooses partitions; rows with neither a partition nor a key stay together for a write.

    `first` is where those of the first write go, so that many writers do not begin with the same.
    """

    def __init__(self, first: int) -> None:
        self._sticky = first

    def choose(
        self, topic: str, keys: pa.Array | None, named: pa.Array | None, count: int
    ) -> Int32s:
        """The partition of each row, of a topic with `count` of them.

        Args: `keys` are binary or strings, `named` are int32; each may have nulls, or one be None.

        Raises: ValueError for a named partition that the topic does not have.
        """
        known = keys if keys is not None else named
        rows = 0 if known is None else len(known)
        chosen = np.full(rows, self._sticky % count, np.int32)
        if named is not None and named.null_count < rows:
            is_named = _present(named)
            chosen[is_named] = named.drop_null().to_numpy()
            _check(topic, chosen[is_named], count)
            undecided = ~is_named
        else:
            undecided = np.ones(rows, np.bool_)
        if keys is not None and keys.null_count < rows:
            hashed = undecided & _present(keys)
            chosen[hashed] = by_key(keys.filter(pa.array(hashed)), count)
            undecided &= ~hashed
        if undecided.any():
            self._sticky += 1
        return chosen


def by_key(keys: pa.Array, count: int) -> Int32s:
    """The partition of each key (none is null) in a topic of `count` partitions."""
    return ((murmur2(keys) & _POSITIVE) % np.uint32(count)).astype(np.int32)


def murmur2(keys: pa.Array) -> npt.NDArray[np.uint32]:
    """Kafka's hash of each key; none is null. Takes as many steps as the longest key has words."""
    octets = keys.cast(pa.binary())
    _, offsets, data = octets.buffers()
    if not len(octets):
        return np.zeros(0, np.uint32)
    bounds = np.frombuffer(offsets, np.int32)[octets.offset : octets.offset + len(octets) + 1]
    starts, sizes = bounds[:-1].astype(np.int64), np.diff(bounds)
    content = np.zeros(1, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    hashes = np.uint32(_SEED) ^ sizes.astype(np.uint32)
    _mix_words(hashes, content, starts, sizes // _WORD_BYTES)
    _mix_rest(hashes, content, starts + sizes // _WORD_BYTES * _WORD_BYTES, sizes % _WORD_BYTES)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _mix_words(
    hashes: npt.NDArray[np.uint32],
    content: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    words: npt.NDArray[np.int32],
) -> None:
    if not words.any():
        return
    # A little-endian word at every byte of the content: keys begin anywhere.
    shape = (len(content) - _WORD_BYTES + 1,)
    at_byte = np.ndarray(shape, "<u4", content.data, strides=(1,))
    rows = np.arange(len(hashes))
    for index in range(int(words.max())):
        rows = rows[words[rows] > index]
        mixed = at_byte[starts[rows] + _WORD_BYTES * index] * _M
        mixed ^= mixed >> _R
        hashes[rows] = (hashes[rows] * _M) ^ (mixed * _M)


def _mix_rest(
    hashes: npt.NDArray[np.uint32],
    content: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    left: npt.NDArray[np.int32],
) -> None:
    for index in reversed(range(_WORD_BYTES - 1)):
        rows = np.flatnonzero(left > index)
        hashes[rows] ^= content[starts[rows] + index].astype(np.uint32) << np.uint32(8 * index)
    some = left > 0
    hashes[some] *= _M


def _present(column: pa.Array) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return present


def _check(topic: str, named: Int32s, count: int) -> None:
    wrong = named[(named < 0) | (named >= count)]
    if len(wrong):
        raise ValueError(
            f"partition {wrong[0]} is named for topic {topic!r}, which has {count} (0 to "
            f"{count - 1}); add partitions, or leave the column partition null to have one chosen"
        )
