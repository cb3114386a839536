"""The rules of the five specifications, and the planted bugs that break each of them.

The specifications are KIP-211 (its text and the comparison with its first version), KIP-496,
KIP-842 and KIP-932. `RULES` names a rule by its section; `ELSEWHERE` holds rules that no history
can break, each with its test; `FURTHER` holds what users of Kafka rely on beside them. An earlier
simulator was tried on twelve planted bugs and missed six: these are the six rows that begin with
"Found by". The six rows below them are for what it had no fault or no check for; the six bugs that
it found are not recorded.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pytest

from . import planted, planted_growth, planted_records, planted_shares
from .planted_console import CONSOLE
from .planted_resets import PLANTED as RESETS
from .planted_resets import unknown_values_are_the_default
from .whole_histories import FOCUS

Plant = Callable[[pytest.MonkeyPatch], None]

MODEL: tuple[Plant, ...] = (
    *planted.IN_THE_CORE,
    planted_records.locks_end_early,
    planted_shares.windows_have_no_bound,
    planted_shares.subscriptions_begin_at_the_end,
    planted_shares.subscriptions_begin_at_the_start,
    planted_shares.groups_with_members_are_reset,
    planted_shares.resets_keep_what_was_delivered,
    planted_shares.added_partitions_begin_at_their_end,
)
GROWTH: tuple[Plant, ...] = (*planted_growth.BUGS_OF_THE_CLIENT, *planted_growth.BUGS_OF_THE_POLICY)
EVERY: Mapping[str, Plant] = {
    plant.__name__: plant
    for plant in (*FOCUS, *MODEL, *GROWTH, *RESETS, unknown_values_are_the_default, *CONSOLE)
}


class Rule(NamedTuple):
    """A rule of a specification, its section, and the names of the bugs that break it."""

    specification: str
    section: str
    rule: str
    bugs: tuple[str, ...]


def _rules(specification: str, rows: str) -> list[Rule]:
    """Read rules: a line of `section | rule`, and below it the bugs that break the rule."""
    found: list[Rule] = []
    for line in rows.strip().splitlines():
        if "|" in line:
            section, rule = (part.strip() for part in line.split("|"))
            found.append(Rule(specification, section, rule, ()))
        else:
            found[-1] = found[-1]._replace(bugs=(*found[-1].bugs, *line.split()))
    return found


# fmt: off
RULES: list[Rule] = [
    *_rules("KIP-211", """
        Transitioning to Empty | retention counts from the moment the group became empty
            empty_groups_expire_by_the_commit first_emptiness_counts
        Transitioning to Empty | offsets of a group that was empty for the retention are removed
            offsets_never_expire
        Transitioning to Empty | the group whose offsets expired is dead
            expired_groups_stay
        Transitioning to Empty | the time of the last change of state is durable
            emptiness_is_forgotten_in_recovery
        Transitioning to Empty | an offset that expired stays removed
            expired_offsets_come_back
        Group states: Stable | offsets in use do not expire
            subscribed_offsets_expire
        Group states: rebalances | nothing expires while members rejoin
            rebalancing_groups_lose_offsets
        Unsubscribing from a topic | offsets that no member uses expire in an active group
            unsubscribed_offsets_stay
        Unsubscribing from a topic | they expire the retention after their commit, not before
            unsubscribed_offsets_expire_at_once
        Standalone consumer | its offsets expire
            standalone_offsets_never_expire
        Standalone consumer | each offset expires by its own commit
            standalone_offsets_expire_together
        Compatibility | a retention that an old client sets counts from the commit
            custom_retention_is_ignored
        Console consumer | a group without a name commits nothing by default
            consoles_without_a_group_commit
        Action if check holds | every protocol type has these semantics
            offsets_of_other_types_expire
    """),
    *_rules("KIP-496", """
        Request/Response | a deleted offset is gone, also after a restart
            offset_deletions_are_not_written
        Request/Response | a group that does not exist is refused
            unknown_groups_have_deletions
        Deletion semantics | offsets of subscribed topics are refused with 86
            offsets_in_use_are_deleted
        Deletion semantics | other offsets are deleted although the group is active
            active_groups_keep_every_offset
        Proposed changes | only the protocol type `consumer` is read
            other_types_are_read_as_consumers
        Proposed changes | every version of a subscription is read as version 0
            later_subscriptions_are_not_read
        Expiration semantics | what is not subscribed to is subject to expiration
            unsubscribed_offsets_stay
        Metrics | commits, expirations and deletions are counted
            commits_are_not_metered expirations_are_not_metered deletions_are_not_metered
        Metrics | completed rebalances are counted
            rebalances_are_not_metered
        Proposed changes | a group has members of one protocol type
            protocol_types_are_mixed
    """),
    *_rules("KIP-842", """
        Without a commit | none: error
            none_begins_at_the_start none_missing_is_left_as_latest
        Without a commit | earliest: the start
            earliest_missing_nearest_is_to_latest earliest_missing_is_left_as_latest
        Without a commit | latest: the end
            latest_missing_nearest_is_to_earliest latest_missing_is_left_as_earliest
        Without a commit | earliest_on_start: the start
            earliest_on_start_missing_is_to_latest earliest_on_start_missing_nearest_is_to_latest
        Without a commit | latest_on_start: the end
            latest_on_start_missing_is_to_earliest latest_on_start_missing_nearest_is_to_earliest
        Without a commit | safe_latest, new group: the end
            safe_latest_missing_is_to_earliest safe_latest_missing_nearest_is_to_earliest
            start_of_each_process start_of_each_assignment
        Without a commit | safe_latest, added partition: the start
            comparison_turned_round every_topic_is_old policy_turned_round
            new_partitions_from_their_end commits_without_the_mark
            the_mark_is_looked_for_in_one_place
        Without a commit | a lookup that fails decides nothing
            lookups_leave_the_callback held_partitions_are_forgotten
        Out of range | none: error
            none_below_is_left_as_latest none_above_is_left_as_latest
        Out of range | earliest: the start
            earliest_below_is_left_as_latest earliest_above_is_left_as_latest
        Out of range | latest: the end
            latest_below_is_left_as_earliest latest_above_is_left_as_earliest
        Out of range | earliest_on_start: error
            earliest_on_start_below_is_to_latest earliest_on_start_above_is_to_latest
        Out of range | latest_on_start: error
            latest_on_start_below_is_to_latest latest_on_start_above_is_to_latest
        Out of range | safe_latest: the end
            safe_latest_below_is_to_earliest safe_latest_above_is_to_earliest
        Out of range | nearest, under the range: the start
            none_below_nearest_is_to_latest safe_latest_below_nearest_is_to_latest
            earliest_below_nearest_is_to_latest latest_below_nearest_is_to_latest
            earliest_on_start_below_nearest_is_to_latest
            latest_on_start_below_nearest_is_to_latest
        Out of range | nearest, over the range: the end
            none_above_nearest_is_to_earliest earliest_above_nearest_is_to_earliest
            safe_latest_above_nearest_is_to_earliest latest_above_nearest_is_to_earliest
            earliest_on_start_above_nearest_is_to_earliest
            latest_on_start_above_nearest_is_to_earliest
        Public interfaces | other values are refused
            unknown_values_are_the_default
    """),
    *_rules("KIP-932", """
        Share-partition | records from SPSO to SPEO are bounded by the lock limit
            windows_have_no_bound
        In-flight records | an acquired record is one member's for the time of its lock
            locks_end_early anybody_may_acknowledge
        In-flight records | a delivery is counted when the record is acquired
            deliveries_are_not_counted
        In-flight records | accept finishes a record
            accepted_records_are_delivered_again
        In-flight records | release below the limit makes it available
            released_records_are_finished
        In-flight records | release at the limit archives it
            one_delivery_too_many
        In-flight records | a lock that elapsed counts as a release
            lock_expiry_forgets_the_delivery
        In-flight records | reject archives a record
            rejected_records_are_delivered_again
        In-flight records | SPSO moves past finished records only
            start_beyond_an_unfinished_record
        Ordering | the records of a batch ascend
            acquired_batches_are_out_of_order
        Managing SPSO and SPEO | a new subscription begins at the latest offset
            subscriptions_begin_at_the_start
        Managing SPSO and SPEO | it begins at the earliest offset where that is configured
            subscriptions_begin_at_the_end
        Managing SPSO and SPEO | only an empty group is reset
            groups_with_members_are_reset
        Managing SPSO and SPEO | a reset discards states and delivery counts
            resets_keep_what_was_delivered leases_keep_what_was_reset
        Managing SPSO and SPEO | a partition that is added begins at 0
            added_partitions_begin_at_their_end
        Recovery | SPSO is durable
            resets_not_written
        Recovery | the states of in-flight records are durable
            state_is_not_recovered snapshots_without_finished_records
            acceptance_before_the_sync answers_before_the_sync
        Recovery | counts of failed deliveries are durable
            deliveries_lost_in_recovery
        In-flight records | a lock that elapsed at the limit archives the record
            elapsed_locks_archive_nothing
        Membership | a group has as many members as group.share.max.size allows
            share_groups_have_no_size
        Membership | as many share sessions are open as group.share.max.share.sessions allows
            share_sessions_have_no_bound
        Membership | a heartbeat with the epoch of no assignment is fenced
            member_epochs_are_not_compared
        Membership | a member without heartbeats leaves with its session
            silent_members_stay
        Assignment | every share-partition has a member
            share_partitions_without_a_member
        Assignment | a member is assigned topics that it subscribes to
            assignments_ignore_subscriptions
        Assignment | members of the same topics have equal parts of them
            one_member_has_every_partition
        Future work | browsing changes neither states nor locks
            browsers_release_records
        Configuration | the lock duration of a group overrides the broker's
            lock_durations_of_groups_are_ignored
        Configuration | values have a minimum and a maximum
            settings_out_of_bounds_are_accepted
        Configuration | share groups can be switched off
            share_groups_stay_switched_on
        Configuration | a group is of one type
            share_groups_may_commit
    """),
]
# Rules of tools, of defaults and of formats, which no history contains: each with its test.
ELSEWHERE: list[Rule] = [
    *_rules("KIP-211", """
        Compatibility | the format of a commit with a retention of its own keeps it
            tests/golden/test_group_journal.py::test_records_are_written_as_kafka_read_them
        Proposed changes | the default retention is seven days
            tests/broker/test_admin_configs.py::test_a_group_may_keep_its_offsets_for_a_time_of_its_own
    """),
    *_rules("KIP-496", """
        Execution | --delete-offsets prints a line of each partition
            tests/cli/test_consumer_groups_delete.py::test_offsets_of_topics_and_partitions_are_deleted
        Execution | a topic without partitions has one line, `Not Provided`
            tests/cli/test_consumer_groups_delete.py::test_a_topic_without_partitions_is_not_provided
        Execution | an error of the group has one line
            tests/cli/test_consumer_groups_delete.py::test_an_error_of_the_group_stands_alone
    """),
    *_rules("KIP-932", """
        Managing SPSO and SPEO | the tool resets to the start, to a time, and to the end
            tests/cli/test_share_groups.py::test_a_reset_is_planned_and_made
        Configuration | settings of the broker have Kafka's defaults and bounds
            tests/broker/test_share_settings.py::test_bounds_of_the_broker
        Configuration | the longest lock duration bounds that of a group
            tests/broker/test_share_settings.py::test_bounds_of_a_group
    """),
]
FURTHER: list[Rule] = [
    *_rules("The earlier simulator", """
        Found by nothing | a window of sequences refuses old ones
            old_sequences_are_accepted
        Found by no simulation | offsets of subscribed topics stay
            subscribed_offsets_expire
        Found by no simulation | compaction keeps the newest value of a key
            compaction_drops_the_newest
        Found by no simulation | duplicates are known after a crash
            producers_forgotten_in_recovery
        Found by no simulation | a lower commit counts
            lower_commits_are_ignored
        Found by no simulation | a lock lasts its time, to the millisecond
            locks_end_early
        Missing | a torn append is repaired
            torn_appends_stay
        Missing | bit rot is no torn end
            all_damage_counts_as_torn
        Missing | a missing file is noticed
            missing_segments_pass missing_folders_pass
        Missing | lost writes are noticed
            produce_is_answered_before_the_sync
        Missing | duplicates and gaps are noticed
            duplicates_are_appended gaps_are_accepted reads_skip_a_batch
        Missing | a step of the loop is bounded
            large_answers_are_encoded_on_the_loop
    """),
    *_rules("Kafka", """
        ListOffsets | a time has the first record that is as late
            look_ups_by_time_are_late
        Records | timestamps and headers stay as they were sent
            cleaned_timestamps_shift headers_are_dropped
        Compaction | a tombstone stays for delete.retention.ms, and deletes what is before it
            tombstones_go_at_once tombstones_delete_later_values
        KIP-98 | the last five batches of a producer are known
            four_batches_are_remembered only_the_newest_batch_is_a_duplicate
        KIP-98 | batches of a producer that are in flight together stay in order
            batches_behind_a_failed_one_are_appended
        KIP-98 | epochs and producer ids
            old_epochs_may_write producer_ids_given_twice
        Logs | recovery keeps whole batches
            recovery_cuts_the_last_batch
        DeleteRecords | exactly what was asked is deleted
            deleted_records_come_back one_record_too_many_is_deleted
        Retention | a clock that jumps deletes nothing
            retention_trusts_the_wall_clock
        KIP-932 | a share session has epochs
            session_epochs_are_not_compared
        OffsetCommit | commits are durable, and of the current generation
            commits_are_not_written old_generations_may_commit
        OffsetCommit | metadata is kept with its offset
            metadata_is_not_written
        KIP-848 | a partition has one owner
            two_members_own_a_partition
        KIP-848 | every partition is assigned
            partitions_without_a_member
        JoinGroup, SyncGroup | every member receives its assignment
            followers_are_assigned_nothing
        KIP-345 | a static member that returns causes no rebalance
            returning_members_rebalance
        KIP-345 | the member before it is fenced
            old_static_members_are_served
        KIP-345, KIP-848 | an instance is one member's, and keeps its partitions
            instances_are_shared places_of_absent_members_are_given_away
        Topics | creation, growth and deletion are durable
            deleted_topics_come_back added_partitions_are_not_written
            unknown_topics_are_answered_at_once
        Configs | changes are durable
            settings_are_not_written
        Produce | batches are validated
            records_are_not_looked_at checksums_are_not_compared
            control_batches_are_accepted checksums_count_only_with_acks
        Transactions | a transactional id is refused
            transactional_ids_are_accepted
        Connections | every request has a response
            refused_producers_have_no_response
        Connections | a peer that reads nothing is disconnected
            unread_peers_stay
    """),
    *_rules("Headrace", """
        Dead letters | a rejected record has a dead letter, or is listed
            rejected_records_vanish lists_not_written holders_not_written
            dead_letters_cannot_be_fetched
        Leases | what is acknowledged is durable
            commits_not_written parts_not_written
        Leases | an older driver is fenced, a delay lasts
            old_drivers_are_served delays_forgotten
        Leases | a commit is durable as a whole, also where it is decided in portions
            portions_are_written_apart commits_are_answered_before_their_last_portion
        Journals | groups that were deleted stay so, and pruning keeps what counts
            deletions_not_written pruned_too_far
        Power cuts | states of records that a log lost are not those of new ones
            lost_ends_are_ignored states_of_lost_records_stay leases_keep_lost_records
            lost_ends_are_not_synced
    """),
]
# fmt: on
