// Consumer groups of the Java clients against a broker: one named check a method, one line of outcome each.
// Run by test_java_clients.py.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class JavaGroups extends Checks {
    public static void main(String[] arguments) throws Exception {
        run(JavaGroups.class, arguments[0]);
    }

    // ---- members

    static void checkRangeSharesPartitionsAndThoseWhoStayTakeOver() throws Exception {
        shareAndTakeOver("range", RangeAssignor.class);
    }

    static void checkCooperativeStickySharesPartitionsAndThoseWhoStayTakeOver() throws Exception {
        shareAndTakeOver("cooperative-sticky", CooperativeStickyAssignor.class);
    }

    static void shareAndTakeOver(String group, Class<?> assignor) throws Exception {
        String topic = created("topic-" + group, 6, 120);
        Map<String, Object> settings = Map.of("partition.assignment.strategy", assignor.getName());
        var seen = new TreeSet<String>();
        try (var one = member(group, settings); var other = member(group, settings)) {
            try (var third = member(group, settings)) {
                for (var member : List.of(one, other, third)) member.subscribe(List.of(topic));
                until(() -> {
                    for (var member : List.of(one, other, third)) read(member, seen);
                    return owned(one, other, third).equals(List.of(2, 2, 2));
                });
                var described = described(group);
                require(described.partitionAssignor().equals(group), "" + described);
                require(described.groupState() == GroupState.STABLE, "" + described);
            }
            until(() -> {
                for (var member : List.of(one, other)) read(member, seen);
                return owned(one, other).equals(List.of(3, 3)) && sum(committed(group)) == 120;
            });
        }
        require(seen.size() == 120, "" + seen);
        require(described(group).groupState() == GroupState.EMPTY, "" + described(group));
    }

    static void checkAStaticMemberThatComesAgainKeepsItsPartitionsWithoutARebalance() throws Exception {
        String topic = created("topic-static", 4, 0);
        int[] rebalances = {0};
        var listener = new ConsumerRebalanceListener() {
            public void onPartitionsRevoked(Collection<TopicPartition> gone) {}

            public void onPartitionsAssigned(Collection<TopicPartition> given) {
                rebalances[0]++;
            }
        };
        try (var stays = member("static", Map.of("group.instance.id", "a"))) {
            stays.subscribe(List.of(topic), listener);
            Set<TopicPartition> held = new HashSet<>();
            try (var goes = member("static", Map.of("group.instance.id", "b"))) {
                goes.subscribe(List.of(topic));
                pollUntil(() -> owned(stays, goes).equals(List.of(2, 2)), stays, goes);
                held.addAll(goes.assignment());
            }
            int before = rebalances[0];
            try (var again = member("static", Map.of("group.instance.id", "b"))) {
                again.subscribe(List.of(topic));
                pollUntil(() -> again.assignment().size() == 2, stays, again);
                require(again.assignment().equals(held), "" + again.assignment());
            }
            require(rebalances[0] == before, "rebalances " + rebalances[0]);
        }
    }

    static void checkAStaticMemberThatIsReplacedIsFenced() throws Exception {
        String topic = created("topic-fenced", 2, 0);
        try (var old = member("fenced", Map.of("group.instance.id", "a"));
                var young = member("fenced", Map.of("group.instance.id", "a"))) {
            old.subscribe(List.of(topic));
            pollUntil(() -> old.assignment().size() == 2, old);
            young.subscribe(List.of(topic));
            pollUntil(() -> young.assignment().size() == 2, young);
            requireThrows(FencedInstanceIdException.class, () -> pollUntil(() -> false, old));
        }
    }

    static void checkWhatAMemberCommitsIsReadBackWithItsMetadata() throws Exception {
        String topic = created("topic-metadata", 1, 10);
        var place = new TopicPartition(topic, 0);
        try (var member = member("metadata", Map.of())) {
            member.subscribe(List.of(topic));
            pollUntil(() -> member.assignment().size() == 1, member);
            member.position(place); // the consumer has asked where to begin, and would give that answer again
            var offset = new OffsetAndMetadata(7, Optional.of(0), "half way, said à");
            member.commitSync(Map.of(place, offset));
            require(member.committed(Set.of(place)).get(place).equals(offset), "" + member.committed(Set.of(place)));
            requireThrows(
                    OffsetMetadataTooLarge.class,
                    () -> member.commitSync(Map.of(place, new OffsetAndMetadata(8, "x".repeat(4097)))));
            require(committed("metadata").get(place) == 7L, "" + committed("metadata"));
        }
    }

    // ---- administration

    static void checkOffsetsOfATopicNoLongerSubscribedAreDeletedWhileTheGroupLives() throws Exception {
        String kept = created("topic-kept", 1, 5), left = created("topic-left", 2, 6);
        TopicPartition keptZero = new TopicPartition(kept, 0);
        TopicPartition leftZero = new TopicPartition(left, 0), leftOne = new TopicPartition(left, 1);
        try (var member = member("leaving", Map.of())) {
            member.subscribe(List.of(kept, left));
            var seen = new TreeSet<String>();
            until(() -> {
                read(member, seen);
                return sum(committed("leaving")) == 11;
            });
            member.subscribe(List.of(kept));
            pollUntil(() -> described("leaving").members().stream()
                    .allMatch(one -> one.assignment().topicPartitions().equals(Set.of(keptZero))), member);
            var mixed = admin.deleteConsumerGroupOffsets("leaving", Set.of(keptZero, leftZero));
            requireThrows(GroupSubscribedToTopicException.class, () -> mixed.all().get());
            requireThrows(GroupSubscribedToTopicException.class, () -> mixed.partitionResult(keptZero).get());
            mixed.partitionResult(leftZero).get();
            requireThrows(IllegalArgumentException.class, () -> mixed.partitionResult(leftOne));
            require(committed("leaving").keySet().equals(Set.of(keptZero, leftOne)), "" + committed("leaving"));
            admin.deleteConsumerGroupOffsets("leaving", Set.of(leftOne)).all().get();
            require(committed("leaving").keySet().equals(Set.of(keptZero)), "" + committed("leaving"));
        }
        admin.deleteConsumerGroupOffsets("leaving", Set.of(keptZero)).all().get();
        require(committed("leaving").isEmpty(), "" + committed("leaving"));
    }

    static void checkDeletionOfOffsetsThatCannotBeIsToldByPartitionAndAsAWhole() throws Exception {
        String topic = created("topic-absent", 2, 0);
        TopicPartition zero = new TopicPartition(topic, 0), nine = new TopicPartition(topic, 9);
        var offsets = Map.of(zero, new OffsetAndMetadata(0), new TopicPartition(topic, 1), new OffsetAndMetadata(0));
        var unknown = admin.deleteConsumerGroupOffsets("no-such-group", Set.of(zero));
        requireThrows(GroupIdNotFoundException.class, () -> unknown.all().get());
        requireThrows(GroupIdNotFoundException.class, () -> unknown.partitionResult(zero).get());
        admin.alterConsumerGroupOffsets("absent", offsets).all().get();
        var mixed = admin.deleteConsumerGroupOffsets("absent", Set.of(zero, nine));
        requireThrows(UnknownTopicOrPartitionException.class, () -> mixed.all().get());
        requireThrows(UnknownTopicOrPartitionException.class, () -> mixed.partitionResult(nine).get());
        mixed.partitionResult(zero).get();
        admin.deleteConsumerGroupOffsets("absent", Set.of(zero)).all().get();  // there is none any more
        admin.deleteConsumerGroupOffsets("absent", Set.of()).all().get();
    }

    static void checkMembersAreRemovedByInstanceAndAllAtOnce() throws Exception {
        String topic = created("topic-removed", 4, 0);
        var a = member("removed", Map.of("group.instance.id", "a"));
        var b = member("removed", Map.of("group.instance.id", "b"));
        try (a; b; var dynamic = member("removed", Map.of())) {
            for (var member : List.of(a, b, dynamic)) member.subscribe(List.of(topic));
            pollUntil(() -> owned(a, b, dynamic).stream().allMatch(count -> count > 0), a, b, dynamic);
            var nobody = new MemberToRemove("nobody");
            var options = new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("a"), nobody));
            var result = admin.removeMembersFromConsumerGroup("removed", options);
            result.memberResult(new MemberToRemove("a")).get();
            requireThrows(UnknownMemberIdException.class, () -> result.memberResult(nobody).get());
            pollUntil(() -> described("removed").members().size() == 2, b, dynamic);
            pollUntil(() -> owned(b, dynamic).equals(List.of(2, 2)), b, dynamic);
        }
        var all = new RemoveMembersFromConsumerGroupOptions();
        all.reason("the end");
        admin.removeMembersFromConsumerGroup("removed", all).all().get();  // b alone, which is static
        require(described("removed").groupState() == GroupState.EMPTY, "" + described("removed"));
    }

    static void checkOffsetsAreAlteredOnlyWhereNobodyIs() throws Exception {
        String topic = created("topic-altered", 1, 5);
        var place = new TopicPartition(topic, 0);
        var wanted = Map.of(place, new OffsetAndMetadata(3, "by hand"));
        try (var member = member("altered", Map.of())) {
            member.subscribe(List.of(topic));
            pollUntil(() -> member.assignment().size() == 1, member);
            requireThrows(
                    UnknownMemberIdException.class,
                    () -> admin.alterConsumerGroupOffsets("altered", wanted).all().get());
            requireThrows(
                    GroupNotEmptyException.class,
                    () -> admin.deleteConsumerGroups(List.of("altered")).all().get());
        }
        admin.alterConsumerGroupOffsets("altered", wanted).all().get();
        try (var member = member("altered", Map.of())) {
            member.subscribe(List.of(topic));
            var seen = new TreeSet<String>();
            until(() -> {
                read(member, seen);
                return !seen.isEmpty();
            });
            require(seen.equals(new TreeSet<>(Set.of("3", "4"))), "" + seen);
        }
        admin.deleteConsumerGroups(List.of("altered")).all().get();
        requireThrows(
                GroupIdNotFoundException.class,
                () -> admin.deleteConsumerGroups(List.of("altered")).all().get());
        requireThrows(GroupIdNotFoundException.class, () -> described("altered"));
    }

    static void checkGroupsAreListedByStateAndType() throws Exception {
        String topic = created("topic-listed", 1, 0);
        var place = new TopicPartition(topic, 0);
        admin.alterConsumerGroupOffsets("listed-simple", Map.of(place, new OffsetAndMetadata(0))).all().get();
        try (var member = member("listed-active", Map.of())) {
            member.subscribe(List.of(topic));
            pollUntil(() -> member.assignment().size() == 1, member);
            var stable = ListGroupsOptions.forConsumerGroups().inGroupStates(Set.of(GroupState.STABLE));
            require(listed(stable).equals(Set.of("listed-active")), "" + listed(stable));
            var empty = ListGroupsOptions.forConsumerGroups().inGroupStates(Set.of(GroupState.EMPTY));
            require(listed(empty).equals(Set.of("listed-simple")), "" + listed(empty));
            var classic = ListGroupsOptions.forConsumerGroups().withTypes(Set.of(GroupType.CLASSIC));
            require(listed(classic).equals(Set.of("listed-active", "listed-simple")), "" + listed(classic));
        }
    }

    static Set<String> listed(ListGroupsOptions options) throws Exception {
        var found = new TreeSet<String>();
        for (var one : admin.listGroups(options).all().get())
            if (one.groupId().startsWith("listed-")) found.add(one.groupId());
        return found;
    }

    // ---- helpers

    /** A topic whose records carry their number, spread over the partitions. */
    static String created(String topic, int partitions, int records) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        Map<String, Object> settings = Map.of("bootstrap.servers", servers);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < records; number++)
                producer.send(new ProducerRecord<>(topic, number % partitions, null, "" + number));
        }
        return topic;
    }

    static KafkaConsumer<String, String> member(String group, Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers, "group.id", group));
        settings.putAll(Map.of("enable.auto.commit", false, "auto.offset.reset", "earliest"));
        settings.putAll(Map.of("heartbeat.interval.ms", 100, "session.timeout.ms", 30_000));
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    /** Poll once and commit; what a rebalance on the way left uncommitted is committed the next time. */
    static void read(KafkaConsumer<String, String> member, Set<String> seen) {
        var records = member.poll(Duration.ofMillis(20));
        records.forEach(record -> seen.add(record.value()));
        try {
            if (!member.assignment().isEmpty()) member.commitSync();
        } catch (RebalanceInProgressException | CommitFailedException error) {
            System.err.println("not committed: " + error);
        }
    }

    static List<Integer> owned(KafkaConsumer<?, ?>... members) {
        return Arrays.stream(members).map(member -> member.assignment().size()).toList();
    }

    static ConsumerGroupDescription described(String group) {
        return got(admin.describeConsumerGroups(List.of(group)).describedGroups().get(group));
    }

    static Map<TopicPartition, Long> committed(String group) {
        var found = new HashMap<TopicPartition, Long>();
        got(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
                .forEach((place, offset) -> found.put(place, offset.offset()));
        return found;
    }

    static <T> T got(KafkaFuture<T> future) {
        try {
            return future.get();
        } catch (ExecutionException error) {
            if (error.getCause() instanceof RuntimeException cause) throw cause;
            throw new IllegalStateException(error);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    static long sum(Map<?, Long> offsets) {
        return offsets.values().stream().mapToLong(Long::longValue).sum();
    }

    static void pollUntil(BooleanSupplier done, KafkaConsumer<?, ?>... members) throws TimeoutException {
        until(() -> {
            for (var member : members) member.poll(Duration.ofMillis(20));
            return done.getAsBoolean();
        });
    }
}
