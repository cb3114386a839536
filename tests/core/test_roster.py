"""A walk over names that come and go meanwhile."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.roster import Roster

NAMES = st.sampled_from("abcdefgh")


@given(
    st.sets(NAMES),
    st.lists(st.one_of(st.none(), st.tuples(st.booleans(), NAMES)), max_size=40),
)
def test_who_is_there_all_the_time_is_met(
    names: set[str], steps: list[tuple[bool, str] | None]
) -> None:
    roster = Roster()
    for name in sorted(names):
        roster.add(name)
    there, stayed, met = set(names), set(names), []
    walk = roster.walk()
    for step in steps:
        if step is None:
            met += list(islice(walk, 1))
            continue
        added, name = step
        if added:
            roster.add(name)
            there.add(name)
        else:
            roster.drop(name)
            there.discard(name)
            stayed.discard(name)
        assert (name in roster) == added
    met += walk
    assert stayed <= set(met)
    assert len(roster) == len(there)
    assert sorted(roster.walk()) == sorted(there)
