// The Java consumer in groups of the new protocol (KIP-848): one named check a method, one line of
// outcome each. Run by test_new_consumer_protocol.py.

import java.time.Duration;
import java.util.*;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class JavaConsumerGroups extends Checks {
    public static void main(String[] arguments) throws Exception {
        run(JavaConsumerGroups.class, arguments[0]);
    }

    // ---- members

    static void checkMembersShareTakeOverAndAreToldOfIt() throws Exception {
        String topic = created("shared", 6, 60);
        var first = new Member("shared", Map.of());
        first.subscribe(topic);
        until(() -> first.poll().values.size() == 60);
        first.consumer.commitSync();
        var second = new Member("shared", Map.of());
        second.subscribe(topic);
        until(() -> share(List.of(3, 3), first, second));
        require(first.revoked.size() == 3, "revoked " + first.revoked);
        require(second.assigned.equals(first.revoked), second.assigned + " is not " + first.revoked);
        require(second.revoked.isEmpty() && first.lost.isEmpty() && second.lost.isEmpty(), "lost");
        produce(topic, 6, 60, 12);
        until(() -> first.poll().values.size() + second.poll().values.size() == 72);
        second.consumer.commitSync();
        second.close();
        until(() -> first.poll().owns(6));
        require(first.values.size() + second.values.size() == 72, "records came twice");
        first.close();
    }

    static void checkAMemberGoesOnWhereItsPredecessorCommitted() throws Exception {
        String topic = created("resumed", 1, 10);
        try (var first = new Member("resumed", Map.of("max.poll.records", "4"))) {
            first.subscribe(topic);
            until(() -> first.poll().values.size() == 4);
            first.consumer.commitSync();
        }
        try (var second = new Member("resumed", Map.of())) {
            second.subscribe(topic);
            until(() -> second.poll().values.size() == 6);
            require(second.values.get(0).equals("4"), "began with " + second.values);
        }
    }

    static void checkAPatternIsMatchedByTheBrokerAlsoForTopicsThatComeLater() throws Exception {
        created("pay-1", 1, 1);
        created("repay-1", 1, 1);
        try (var member = new Member("patterns", Map.of("metadata.max.age.ms", "200"))) {
            member.consumer.subscribe(new SubscriptionPattern("pay-.*"), member);
            until(() -> member.poll().values.size() == 1);
            created("pay-2", 2, 2);
            until(() -> member.poll().values.size() == 3);
            require(topics(member).equals(Set.of("pay-1", "pay-2")), "" + topics(member));
            admin.deleteTopics(List.of("pay-1")).all().get();
            until(() -> topics(member.poll()).equals(Set.of("pay-2")));
        }
    }

    static void checkAPatternThatIsNoneIsRefused() throws Exception {
        try (var member = new Member("refused", Map.of())) {
            member.consumer.subscribe(new SubscriptionPattern("(?=a)b"), member);
            requireThrows(InvalidRegularExpression.class, () -> until(() -> member.poll() == null));
        }
    }

    static void checkAStaticMemberKeepsItsPartitionsWhileItIsAway() throws Exception {
        String topic = created("static", 4, 0);
        try (var other = new Member("static", Map.of())) {
            other.subscribe(topic);
            Set<TopicPartition> had;
            try (var member = new Member("static", Map.of("group.instance.id", "one"))) {
                member.subscribe(topic);
                until(() -> share(List.of(2, 2), other, member));
                had = member.consumer.assignment();
            }
            int revoked = other.revoked.size(), assigned = other.assigned.size();
            try (var back = new Member("static", Map.of("group.instance.id", "one"))) {
                back.subscribe(topic);
                until(() -> back.poll().owns(2));
                require(back.consumer.assignment().equals(had), "" + back.consumer.assignment());
                other.poll();
                require(other.revoked.size() == revoked && other.assigned.size() == assigned, "moved");
                try (var thief = new Member("static", Map.of("group.instance.id", "one"))) {
                    thief.subscribe(topic);
                    requireThrows(UnreleasedInstanceIdException.class, () -> until(() -> thief.poll() == null));
                }
            }
        }
    }

    static void checkTheAssignorIsTheOneThatMembersAskFor() throws Exception {
        created("range-a", 3, 0);
        created("range-b", 3, 0);
        var range = Map.of("group.remote.assignor", "range");
        try (var first = new Member("ranges", range);
                var second = new Member("ranges", range)) {
            first.subscribe("range-a", "range-b");
            second.subscribe("range-a", "range-b");
            until(() -> share(List.of(4, 2), first, second) || share(List.of(2, 4), first, second));
            for (var member : List.of(first, second)) {
                var byTopic = member.consumer.assignment().stream().collect(Collectors.groupingBy(
                        TopicPartition::topic, Collectors.mapping(TopicPartition::partition, Collectors.toSet())));
                require(byTopic.get("range-a").equals(byTopic.get("range-b")), "" + byTopic);
            }
            require(described("ranges").partitionAssignor().equals("range"), "assignor");
        }
        try (var member = new Member("unknown", Map.of("group.remote.assignor", "nobodys"))) {
            member.subscribe("range-a");
            requireThrows(UnsupportedAssignorException.class, () -> until(() -> member.poll() == null));
        }
    }

    static void checkMoreMembersThanPartitionsAndPartitionsThatComeLater() throws Exception {
        String topic = created("grown", 1, 0);
        try (var first = new Member("grown", Map.of());
                var second = new Member("grown", Map.of())) {
            first.subscribe(topic);
            until(() -> first.poll().owns(1));
            second.subscribe(topic);
            until(() -> share(List.of(1, 0), first, second) && members("grown") == 2);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            until(() -> share(List.of(2, 2), first, second));
        }
    }

    static void checkASubscriptionThatChangesTakesEffect() throws Exception {
        created("before", 2, 0);
        created("after", 2, 0);
        try (var member = new Member("changing", Map.of())) {
            member.subscribe("before");
            until(() -> topics(member.poll()).equals(Set.of("before")));
            member.subscribe("after");
            until(() -> topics(member.poll()).equals(Set.of("after")));
            require(member.revoked.size() == 2, "" + member.revoked);
            member.consumer.unsubscribe();
            until(() -> members("changing") == 0);
        }
    }

    static void checkAMemberThatWasRemovedComesBack() throws Exception {
        String topic = created("removed", 2, 2);
        try (var member = new Member("removed", Map.of())) {
            member.subscribe(topic);
            until(() -> member.poll().values.size() == 2);
            admin.removeMembersFromConsumerGroup("removed", new RemoveMembersFromConsumerGroupOptions())
                    .all().get();
            until(() -> member.poll().lost.size() == 2);
            until(() -> member.poll().values.size() == 4);
        }
    }

    static void checkAMemberThatDoesNotPollIsRemovedInTheEnd() throws Exception {
        String topic = created("slow", 2, 0);
        alter("slow", "consumer.session.timeout.ms", "1000");
        try (var slow = new Member("slow", Map.of("max.poll.interval.ms", "1500"));
                var other = new Member("slow", Map.of())) {
            slow.subscribe(topic);
            until(() -> slow.poll().owns(2));
            other.subscribe(topic);
            until(() -> other.poll().owns(2));
            until(() -> share(List.of(1, 1), slow, other));
        }
    }

    // ---- commits

    static void checkCommitsOfStrangersAreRefusedWhileTheGroupHasMembers() throws Exception {
        String topic = created("stranger", 1, 1);
        var partition = new TopicPartition(topic, 0);
        var offset = Map.of(partition, new OffsetAndMetadata(1, "from outside"));
        try (var member = new Member("stranger", Map.of())) {
            member.subscribe(topic);
            until(() -> member.poll().owns(1));
            requireThrows(
                    UnknownMemberIdException.class,
                    () -> admin.alterConsumerGroupOffsets("stranger", offset).all().get());
            member.consumer.commitSync(offset);
            require(member.consumer.committed(Set.of(partition)).equals(offset), "committed");
        }
        until(() -> members("stranger") == 0);
        var reset = Map.of(partition, new OffsetAndMetadata(0));
        admin.alterConsumerGroupOffsets("stranger", reset).all().get();
        var told = admin.listConsumerGroupOffsets("stranger").partitionsToOffsetAndMetadata().get();
        require(told.get(partition).offset() == 0, "" + told);
    }

    static void checkWhatIsCommittedWhilePartitionsAreRevokedCounts() throws Exception {
        String topic = created("revoking", 2, 20);
        try (var first = new Member("revoking", Map.of());
                var second = new Member("revoking", Map.of())) {
            first.commitsWhenRevoked = true;
            first.subscribe(topic);
            until(() -> first.poll().values.size() == 20);
            second.subscribe(topic);
            until(() -> share(List.of(1, 1), first, second));
            require(second.values.isEmpty(), "read again: " + second.values);
        }
    }

    // ---- administration

    static void checkGroupsAreDescribedListedAndDeleted() throws Exception {
        String topic = created("described", 3, 3);
        try (var member = new Member("described", Map.of("client.id", "me", "client.rack", "r1"))) {
            member.subscribe(topic);
            until(() -> member.poll().values.size() == 3);
            member.consumer.commitSync();
            until(() -> state("described") == GroupState.STABLE);
            var told = described("described");
            require(told.type() == GroupType.CONSUMER && told.partitionAssignor().equals("uniform"), "" + told);
            require(told.groupEpoch().get() == told.targetAssignmentEpoch().get(), "" + told);
            var one = told.members().iterator().next();
            require(one.clientId().equals("me") && one.assignment().topicPartitions().size() == 3, "" + one);
            require(one.memberEpoch().equals(told.groupEpoch()) && one.upgraded().get(), "" + one);
            require(one.targetAssignment().get().equals(one.assignment()), "" + one);
            var listed = admin.listGroups(ListGroupsOptions.forConsumerGroups()
                    .withTypes(Set.of(GroupType.CONSUMER))).all().get();
            var mine = listed.stream().filter(group -> group.groupId().equals("described")).findAny().get();
            require(mine.groupState().get() == GroupState.STABLE && mine.protocol().equals("consumer"), "" + mine);
            requireThrows(
                    GroupNotEmptyException.class,
                    () -> admin.deleteConsumerGroups(List.of("described")).all().get());
        }
        until(() -> state("described") == GroupState.EMPTY);
        admin.deleteConsumerGroups(List.of("described")).all().get();
        requireThrows(GroupIdNotFoundException.class, () -> described("described"));
    }

    static void checkAGroupThatIsEmptyChangesItsProtocol() throws Exception {
        String topic = created("migrated", 1, 10);
        var classic = Map.of("group.protocol", "classic", "max.poll.records", "4");
        var consumer = Map.of("max.poll.records", "4");
        try (var first = new Member("migrated", classic); var second = new Member("migrated", consumer)) {
            first.subscribe(topic);
            until(() -> first.poll().values.size() == 4);
            first.consumer.commitSync();
            second.subscribe(topic);
            requireWaits(second);
            first.close();
            until(() -> second.poll().values.size() == 4);
            second.consumer.commitSync();
            try (var third = new Member("migrated", classic)) {
                third.subscribe(topic);
                requireWaits(third);
                second.close();
                until(() -> third.poll().values.size() == 2);
                require(third.values.equals(List.of("8", "9")), "" + third.values);
            }
        }
    }

    /** Require that a member of the other protocol joins without an error and gets no partition. */
    static void requireWaits(Member member) {
        for (int polls = 0; polls < 40; polls++)
            require(member.poll().owns(0), "" + member.consumer.assignment());
    }

    // ---- what checks are made of

    /** A consumer and what it was told so far. */
    static class Member implements ConsumerRebalanceListener, AutoCloseable {
        final KafkaConsumer<String, String> consumer;
        final List<String> values = new ArrayList<>();
        final Set<TopicPartition> assigned = new HashSet<>(), revoked = new HashSet<>(), lost = new HashSet<>();
        boolean commitsWhenRevoked = false;

        Member(String group, Map<String, String> more) {
            Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers, "group.id", group));
            settings.put("group.protocol", "consumer");
            settings.put("enable.auto.commit", "false");
            settings.put("auto.offset.reset", "earliest");
            settings.putAll(more);
            consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        }

        void subscribe(String... topics) {
            consumer.subscribe(List.of(topics), this);
        }

        Member poll() {
            consumer.poll(Duration.ofMillis(50)).forEach(one -> values.add(one.value()));
            return this;
        }

        boolean owns(int count) {
            return consumer.assignment().size() == count;
        }

        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            assigned.addAll(partitions);
        }

        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            revoked.addAll(partitions);
            if (commitsWhenRevoked) consumer.commitSync();
        }

        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            lost.addAll(partitions);
        }

        public void close() {
            consumer.close();
        }
    }

    static String created(String topic, int partitions, int records) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        produce(topic, partitions, 0, records);
        return topic;
    }

    static void produce(String topic, int partitions, int first, int count) {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = first; number < first + count; number++)
                producer.send(new ProducerRecord<>(topic, number % partitions, null, "" + number));
        }
    }

    static void alter(String group, String name, String value) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        var set = new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
    }

    static ConsumerGroupDescription described(String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get().get(group);
    }

    static int members(String group) {
        try {
            return described(group).members().size();
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    static GroupState state(String group) {
        try {
            return described(group).groupState();
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    /** Whether members have so many partitions each, once all have polled. */
    static boolean share(List<Integer> counts, Member... members) {
        for (var member : members) member.poll();
        return counts.equals(Stream.of(members).map(one -> one.consumer.assignment().size()).toList());
    }

    static Set<String> topics(Member member) {
        return member.consumer.assignment().stream().map(TopicPartition::topic).collect(Collectors.toSet());
    }
}
