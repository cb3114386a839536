"""The mark of a group's start in the metadata of its offsets."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.group_start import marked, started, unmarked
from headrace.core.types import WallMs

INSTANTS = st.integers(0, 2**53).map(WallMs)


@given(st.none() | st.text(max_size=40), INSTANTS, INSTANTS)
def test_a_mark_is_read_again_and_leaves_no_trace(
    metadata: str | None, first: WallMs, second: WallMs
) -> None:
    own = unmarked(metadata)
    once = marked(metadata, first)
    assert started([once]) == first
    assert unmarked(once) == own
    assert started([marked(once, second)]) == second, "there is one mark, the latest"
    assert unmarked(marked(once, second)) == own


def test_the_earliest_mark_of_a_group_counts() -> None:
    told = [None, "", "mine", marked(None, WallMs(7)), marked("mine", WallMs(5))]
    assert started(told) == 5
    assert started(told[:3]) is None


def test_what_only_looks_like_a_mark() -> None:
    assert started(["headrace.group.started=", "headrace.group.started=1 and more"]) is None
    assert unmarked("see headrace.group.started=1") == "see headrace.group.started=1"


def test_librdkafka_ends_a_mark_as_c_does() -> None:
    sent = marked("mine", WallMs(5)) + "\0"
    assert started([sent]) == 5
    assert unmarked(sent) == unmarked("mine\0") == "mine"
