"""The map of keys that a cleaning builds, against a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.log.key_map import KeyMap

_FOUND = st.lists(st.tuples(st.binary(max_size=3), st.integers(0, 1 << 40)), max_size=400)


@given(_FOUND, st.lists(st.binary(max_size=3), max_size=50))
def test_it_says_what_a_dictionary_says(
    found: list[tuple[bytes, int]], others: list[bytes]
) -> None:
    keys = KeyMap()
    assert not keys
    keys.update(found)
    told = dict(found)
    assert bool(keys) == bool(told)
    for key in [*told, *others]:
        assert (key in keys) == (key in told)
        assert keys.get(key, -1) == told.get(key, -1)
    steps = sum(1 for _ in keys.forget())
    assert not keys
    assert steps > 1
