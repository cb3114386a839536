"""The account of a growing topic, on histories that fit on a page."""

import pytest

from headrace.sim.growth_auditor import Account, GrowthAuditor

OLD, NEW = ("orders", 0), ("orders", 1)


def begun(*, loses: bool) -> GrowthAuditor:
    """A group that started at 100 with a partition of ten records, and another that came at 200."""
    auditor = GrowthAuditor(loses=loses)
    auditor.created("orders", 0, 1, 0)
    auditor.produced(OLD, 0, [b"old"] * 10, 50)
    auditor.looked(OLD, 10)
    auditor.committed(OLD, 100)
    auditor.created("orders", 1, 2, 200)
    auditor.produced(NEW, 0, [b"a", b"b", b"c"], 300)
    return auditor


def read(auditor: GrowthAuditor, *offsets: int) -> None:
    for offset in offsets:
        auditor.read("reader", NEW, offset, b"abc"[offset : offset + 1])


def test_who_reads_all_of_a_new_partition_lost_nothing() -> None:
    auditor = begun(loses=False)
    assert len(auditor.missing()) == 3
    read(auditor, 0, 1, 2)
    assert not auditor.missing()
    assert auditor.settle() == Account(produced=3, lost=0, before_look=0, grown=1)
    assert not auditor.failures


def test_a_new_partition_that_is_begun_at_its_end_is_a_failure() -> None:
    auditor = begun(loses=False)
    auditor.looked(NEW, 2)
    read(auditor, 2)
    assert auditor.settle().lost == 2
    assert auditor.failures == [
        "2 records of orders-1, which came after the start, were skipped: [0, 1]"
    ]


def test_with_latest_it_is_what_was_expected() -> None:
    auditor = begun(loses=True)
    auditor.looked(NEW, 2)
    read(auditor, 2)
    assert auditor.settle() == Account(produced=3, lost=2, before_look=0, grown=1)
    assert not auditor.failures


def test_and_to_read_what_is_before_the_end_is_not() -> None:
    auditor = begun(loses=True)
    auditor.looked(NEW, 2)
    read(auditor, 1, 2)
    auditor.settle()
    assert auditor.failures == ["('orders', 1) begins at 2, and [1] were read"]


def test_a_look_beside_a_committed_offset_excuses_nothing() -> None:
    auditor = begun(loses=True)
    auditor.committed(NEW, 400)
    auditor.looked(NEW, 3)
    auditor.settle()
    assert auditor.failures == [
        "3 records of orders-1, which came after the start, were skipped: [0, 1, 2]"
    ]


@pytest.mark.parametrize("loses", [True, False])
def test_of_an_old_partition_records_before_the_first_look_are_nobodys(loses: bool) -> None:
    auditor = GrowthAuditor(loses=loses)
    auditor.created("orders", 0, 1, 0)
    auditor.created("other", 0, 1, 0)
    auditor.committed(("other", 0), 100)  # the group starts with another partition
    auditor.produced(OLD, 0, [b"x", b"y"], 150)
    auditor.looked(OLD, 1)
    assert auditor.missing() == [(OLD, 1)]
    auditor.read("reader", OLD, 1, b"y")
    assert auditor.settle() == Account(produced=2, lost=0, before_look=1, grown=0)
    assert not auditor.failures


def test_before_the_start_nobody_owes_anything() -> None:
    auditor = GrowthAuditor(loses=False)
    auditor.created("orders", 0, 1, 0)
    auditor.produced(OLD, 0, [b"x"], 50)
    assert auditor.settle() == Account(0, 0, 0, 0)
    assert not auditor.failures


def test_a_record_that_is_not_what_was_produced_is_a_failure() -> None:
    auditor = begun(loses=False)
    auditor.read("reader", NEW, 0, b"z")
    read(auditor, 0, 1, 2)
    auditor.settle()
    assert auditor.failures == ["reader was given b'z' as ('orders', 1) @0"]
