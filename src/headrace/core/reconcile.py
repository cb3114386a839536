"""How a member comes from what it holds to what it is to hold. KIP-848, "Reconciliation".

First it lets go of what it is not to have any more, and says so; then it goes to the target's
epoch and is given what nobody else holds; what others still hold it is given when they have let
go. So no partition is ever held by two. Source: Kafka 4.3, CurrentAssignmentBuilder.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from headrace.core.consumer_words import NOTHING, Holding, Partitions, Progress
from headrace.core.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Goal:
    """What a member is to hold, and in which epoch; `is_free`: whether nobody else holds it."""

    epoch: int
    partitions: Partitions
    is_free: Callable[[TopicPartition], bool]


def reconcile(held: Holding, goal: Goal, owned: Partitions | None) -> Holding:
    """The next step; `held` itself when there is none.

    `owned` is what the member says that it owns, None when it does not say. It is asked in every
    heartbeat, but a step takes it only as long as there is something to let go of.
    """
    if held.revoking and (owned is None or owned & held.revoking):
        return held  # one thing after the other: each has all its time
    kept = held.assigned & goal.partitions
    lost = held.assigned - kept
    if lost and (owned is None or owned & lost):
        return _at(replace(held, progress=Progress.UNREVOKED), kept, lost, held.epoch)
    missing = goal.partitions - kept
    free = frozenset(filter(goal.is_free, missing))
    progress = Progress.STABLE if free == missing else Progress.UNRELEASED
    return _at(replace(held, progress=progress), kept | free, NOTHING, goal.epoch)


def _at(held: Holding, assigned: Partitions, revoking: Partitions, epoch: int) -> Holding:
    """The holding with these partitions in this epoch; what is new in it is of this epoch."""
    known = held.epochs or {}
    return replace(
        held,
        epoch=epoch,
        previous_epoch=held.previous_epoch if epoch == held.epoch else held.epoch,
        assigned=assigned,
        revoking=revoking,
        epochs={one: known.get(one, epoch) for one in assigned | revoking} or None,
    )
