// Members of share groups and their administration by Java: who gets what when members come and go, when
// topics do, and what an administrator sees and changes. One named check a method, one line of outcome each.
// Run by test_java_clients.py.

import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;

public class JavaShareGroups extends Checks {
    public static void main(String[] arguments) throws Exception {
        run(JavaShareGroups.class, arguments[0]);
    }

    // ---- members

    static void checkMembersOfOnePartitionHoldDifferentRecords() throws Exception {
        String queue = Sharer.queue("one-partition", 1, 40);
        var crew = crew(4, queue, queue, Sharer.EXPLICIT, Sharer.EXACT, "max.poll.records=5");
        var held = new HashMap<Sharer, List<ConsumerRecord<String, String>>>();
        for (var member : crew) held.put(member, member.first());  // all hold five at the same time
        require(numbers(crew).size() == 20, "" + numbers(crew));  // a client may have fetched more than it gave out
        held.forEach((member, records) -> member.verdict(records, AcknowledgeType.ACCEPT));
        until(() -> {
            for (var member : crew) member.poll().forEach(member.consumer::acknowledge);
            return numbers(crew).size() >= 40;
        });
        require(numbers(crew).equals(Sharer.numbers(0, 40)), "" + numbers(crew));
        closeAll(crew);
        require(Sharer.lag(queue) == 0, "lag " + Sharer.lag(queue));
    }

    static void checkMembersShareManyPartitionsAndTakeOver() throws Exception {
        String queue = Sharer.queue("many-partitions", 6, 600);
        var crew = crew(3, queue, queue);
        until(() -> polled(crew) && Sharer.hasMembers(queue, 3, 6));
        crew.remove(0).close();
        until(() -> polled(crew) && Sharer.hasMembers(queue, 2, 6));
        Sharer.produce(queue, 6, 600, 60);
        until(() -> polled(crew) && Sharer.lag(queue) == 0);
        closeAll(crew);
    }

    static void checkMoreMembersThanPartitionsAndPartitionsThatComeLater() throws Exception {
        String topic = Sharer.created("grown", 1);  // the group begins with what comes now: latest
        var crew = crew(3, topic, topic);
        until(() -> polled(crew) && Sharer.hasMembers(topic, 3, 3));
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
        Sharer.produce(topic, 4, 0, 80);  // before any member knows of the new partitions
        until(() -> polled(crew) && numbers(crew).size() >= 80);
        require(numbers(crew).equals(Sharer.numbers(0, 80)), "" + numbers(crew));
        until(() -> polled(crew) && Sharer.hasMembers(topic, 3, 4));
        closeAll(crew);
    }

    static void checkATopicThatIsCreatedLaterIsReadFromItsStart() throws Exception {
        try (var member = new Sharer("waiting", "later", "metadata.max.age.ms=200", "allow.auto.create.topics=false")) {
            // The group begins when it has a member: with what is there then, which is nothing.
            until(() -> member.poll().isEmpty() && Sharer.hasMembers("waiting", 1, 0));
            Sharer.created("later", 2);
            Sharer.produce("later", 2, 0, 20);
            member.take(20);
            require(numbers(List.of(member)).equals(Sharer.numbers(0, 20)), "" + member.values());
        }
    }

    static void checkASubscriptionThatChangesLeavesWhatIsHeldToItsHolder() throws Exception {
        String before = Sharer.queue("before", 1, 3), after = Sharer.created("after", 1);
        Sharer.produce(after, 1, 10, 3);
        try (var member = new Sharer(before, before, Sharer.EXPLICIT)) {
            var held = member.first();
            member.consumer.subscribe(List.of(after));
            require(member.consumer.subscription().equals(Set.of(after)), "subscription");
            member.verdict(held, AcknowledgeType.ACCEPT);
            member.commitWell();
            var found = member.first();
            require(Sharer.values(found).equals(Sharer.numbers(10, 3)), "" + Sharer.values(found));
            Sharer.produce(before, 1, 3, 1);
            member.verdict(found, AcknowledgeType.ACCEPT);
            member.commitWell();
            require(member.poll().isEmpty(), "records of a topic that it left");
            member.consumer.subscribe(List.of(before, after));
            require(Sharer.values(member.first()).equals(List.of("3")), "" + member.values());
            member.consumer.unsubscribe();
            until(() -> Sharer.hasMembers(before, 0, 0));
        }
    }

    static void checkWhoClosesSendsVerdictsAndReturnsTheRest() throws Exception {
        String queue = Sharer.queue("closing", 1, 10);
        try (var leaving = new Sharer(queue, queue, Sharer.EXPLICIT);
                var staying = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            var held = leaving.first();
            require(held.size() == 10, held.size() + " records");
            leaving.verdict(held.subList(0, 3), AcknowledgeType.ACCEPT);
            leaving.verdict(held.subList(3, 5), AcknowledgeType.REJECT);
            require(staying.poll().isEmpty(), "held by two");
            leaving.consumer.close();
            var found = staying.first();
            require(Sharer.values(found).equals(Sharer.numbers(5, 5)), "" + Sharer.values(found));
            require(Sharer.counts(found).equals(List.of(2)), "delivery counts");
            require(Sharer.lag(queue) == 5, "lag " + Sharer.lag(queue));
            staying.verdict(found, AcknowledgeType.ACCEPT);
        }
    }

    static void checkGroupsAreIndependent() throws Exception {
        String queue = Sharer.queue("independent", 1, 20);
        Sharer.set("other", "share.auto.offset.reset=earliest");
        try (var one = new Sharer(queue, queue, Sharer.EXPLICIT);
                var other = new Sharer("other", queue, Sharer.EXPLICIT)) {
            one.accept(20);
            require(Sharer.lag(queue) == 0, "lag");
            var records = other.first();
            require(Sharer.values(records).equals(Sharer.numbers(0, 20)), "" + other.values());
            require(Sharer.counts(records).equals(List.of(1)), "delivery counts");
            other.verdict(records, AcknowledgeType.RELEASE);
            other.commitWell();
            require(Sharer.lag(queue) == 0 && Sharer.lag("other") == 20, "lag");
            require(one.poll().isEmpty(), "released by others");
        }
    }

    static void checkATopicThatIsDeletedLeavesTheOthersAtWork() throws Exception {
        String kept = Sharer.queue("kept", 1, 2), deleted = Sharer.created("deleted", 1);
        Sharer.produce(deleted, 1, 2, 2);
        try (var member = new Sharer(kept, kept, "metadata.max.age.ms=200")) {
            member.consumer.subscribe(List.of(kept, deleted));
            member.take(4);
            admin.deleteTopics(List.of(deleted)).all().get();
            for (int number = 4; number < 10; number++) {
                Sharer.produce(kept, 1, number, 1);
                require(member.take(1).get(0).value().equals("" + number), "" + member.values());
            }
            require(Sharer.counts(member.taken).equals(List.of(1)), "delivery counts");
        }
    }

    // ---- administration

    static void checkAGroupIsListedAndDescribed() throws Exception {
        String queue = Sharer.queue("described", 3, 30);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT, "client.id=me", "client.rack=r1")) {
            member.accept(30);
            var told = Sharer.described(queue);
            require(told.groupState() == GroupState.STABLE && told.coordinator().id() == 1, "" + told);
            require(told.groupEpoch() >= 1 && told.groupEpoch() == told.targetAssignmentEpoch(), "" + told);
            var one = told.members().iterator().next();
            require(one.clientId().equals("me") && one.host().equals("/127.0.0.1"), "" + one);
            require(one.assignment().topicPartitions().size() == 3 && one.memberEpoch() == told.groupEpoch(), "" + one);
            var operations = admin.describeShareGroups(
                    List.of(queue), new DescribeShareGroupsOptions().includeAuthorizedOperations(true));
            require(!operations.all().get().get(queue).authorizedOperations().isEmpty(), "operations");
            var shares = ListGroupsOptions.forShareGroups().withTypes(Set.of(GroupType.SHARE));
            var mine = listed(shares, queue).findAny().get();
            require(mine.type().get() == GroupType.SHARE && mine.protocol().equals("share"), "" + mine);
            require(mine.groupState().get() == GroupState.STABLE, "" + mine);
            require(listed(ListGroupsOptions.forConsumerGroups(), queue).count() == 0, "a consumer group");
            var empty = ListGroupsOptions.forShareGroups().inGroupStates(Set.of(GroupState.EMPTY));
            require(listed(empty, queue).count() == 0, "empty");
        }
        until(() -> Sharer.hasMembers(queue, 0, 0));
        require(Sharer.described(queue).groupState() == GroupState.EMPTY, "not empty");
        requireThrows(GroupIdNotFoundException.class, () -> Sharer.described("nobody's"));
        requireThrows(
                GroupIdNotFoundException.class,
                () -> admin.describeConsumerGroups(List.of(queue)).all().get());
    }

    static void checkOffsetsAreListedSetAndForgotten() throws Exception {
        String queue = Sharer.queue("offsets", 2, 40);
        var zero = new TopicPartition(queue, 0);
        var one = new TopicPartition(queue, 1);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            member.accept(40);
            require(Sharer.offsets(queue).get(zero).startOffset() == 20, "" + Sharer.offsets(queue));
            requireThrows(
                    GroupNotEmptyException.class,
                    () -> admin.alterShareGroupOffsets(queue, Map.of(zero, 5L)).all().get());
            requireThrows(
                    GroupNotEmptyException.class,
                    () -> admin.deleteShareGroupOffsets(queue, Set.of(queue)).all().get());
            requireThrows(
                    GroupNotEmptyException.class,
                    () -> admin.deleteShareGroups(List.of(queue)).all().get());
        }
        until(() -> Sharer.hasMembers(queue, 0, 0));
        var nowhere = new TopicPartition("nowhere", 0);
        var altered = admin.alterShareGroupOffsets(queue, Map.of(zero, 5L, one, 15L, nowhere, 0L));
        altered.partitionResult(zero).get();
        requireThrows(UnknownTopicOrPartitionException.class, () -> altered.partitionResult(nowhere).get());
        require(Sharer.offsets(queue).get(zero).lag().get() == 15, "" + Sharer.offsets(queue));
        var spec = new ListShareGroupOffsetsSpec().topicPartitions(List.of(one, nowhere));
        var told = admin.listShareGroupOffsets(Map.of(queue, spec)).partitionsToOffsetInfo(queue).get();
        require(told.get(one).startOffset() == 15 && told.get(nowhere) == null, "" + told);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            member.accept(20);
            require(Sharer.counts(member.taken).equals(List.of(1)), "delivery counts begin anew");
            require(Sharer.which(member.taken, record -> record.partition() == 0).get(0).offset() == 5, "start");
        }
        until(() -> Sharer.hasMembers(queue, 0, 0));
        admin.deleteShareGroupOffsets(queue, Set.of(queue)).all().get();
        requireThrows(
                UnknownTopicOrPartitionException.class,
                () -> admin.deleteShareGroupOffsets(queue, Set.of(queue)).all().get());
        admin.deleteShareGroups(List.of(queue)).all().get(); // the group stays known until then
        requireThrows(
                GroupIdNotFoundException.class,
                () -> admin.deleteShareGroupOffsets(queue, Set.of(queue)).all().get());
    }

    static void checkAResetDiscardsDeliveryCountsAndLocks() throws Exception {
        String queue = Sharer.queue("reset", 1, 10);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            var records = member.first();
            member.verdict(records.subList(0, 5), AcknowledgeType.ACCEPT);
            member.verdict(records.subList(5, 10), AcknowledgeType.RELEASE);
        }
        until(() -> Sharer.hasMembers(queue, 0, 0) && Sharer.lag(queue) == 5);
        admin.alterShareGroupOffsets(queue, Map.of(new TopicPartition(queue, 0), 2L)).all().get();
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            member.accept(8);
            require(member.values().equals(Sharer.numbers(2, 8)), "" + member.values());
            require(Sharer.counts(member.taken).equals(List.of(1)), "" + Sharer.counts(member.taken));
        }
    }

    static void checkAGroupIsDeletedAndBeginsAnew() throws Exception {
        String queue = Sharer.queue("ending", 1, 10);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            member.accept(10);
        }
        until(() -> Sharer.hasMembers(queue, 0, 0));
        admin.deleteShareGroups(List.of(queue)).all().get();
        requireThrows(GroupIdNotFoundException.class, () -> Sharer.described(queue));
        requireThrows(
                GroupIdNotFoundException.class,
                () -> admin.deleteShareGroups(List.of(queue)).all().get());
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {  // its setting is still earliest
            member.accept(10);
            require(member.values().equals(Sharer.numbers(0, 10)), "" + member.values());
        }
    }

    static void checkSettingsOfAGroupAreAlteredShownAndChecked() throws Exception {
        var group = new ConfigResource(ConfigResource.Type.GROUP, "configured");
        for (var one : List.of(
                "share.record.lock.duration.ms=2000", "share.delivery.count.limit=7",
                "share.auto.offset.reset=earliest", "share.partition.max.record.locks=300",
                "share.isolation.level=read_committed",
                "share.renew.acknowledge.enable=false", "share.heartbeat.interval.ms=300",
                "share.session.timeout.ms=3000")) {
            var parts = one.split("=");
            Sharer.set("configured", one);
            var entry = admin.describeConfigs(List.of(group)).all().get().get(group).get(parts[0]);
            require(entry.value().equals(parts[1]), "" + entry);
            require(entry.source() == ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG, "" + entry);
        }
        for (var wrong : List.of(
                "share.record.lock.duration.ms=1", "share.delivery.count.limit=1", "share.auto.offset.reset=sometime",
                "share.delivery.count.limit=many", "no.such.setting=1"))
            requireThrows(InvalidConfigurationException.class, () -> Sharer.set("configured", wrong));
        require(admin.listConfigResources(Set.of(ConfigResource.Type.GROUP), new ListConfigResourcesOptions())
                .all().get().contains(group), "not listed");
    }

    // ---- what checks are made of

    static List<Sharer> crew(int size, String group, String topic, String... settings) {
        return IntStream.range(0, size).mapToObj(one -> new Sharer(group, topic, settings))
                .collect(Collectors.toCollection(ArrayList::new));
    }

    /** Let all of them poll once. */
    static boolean polled(List<Sharer> crew) {
        crew.forEach(Sharer::poll);
        return true;
    }

    /** All that a crew was given, in order. */
    static List<String> numbers(List<Sharer> crew) {
        return Sharer.sorted(crew.stream().flatMap(one -> one.values().stream()).toList());
    }

    static void closeAll(List<Sharer> crew) {
        crew.forEach(Sharer::close);
    }

    static Stream<GroupListing> listed(ListGroupsOptions options, String group)
            throws InterruptedException, ExecutionException {
        return admin.listGroups(options).all().get().stream().filter(one -> one.groupId().equals(group));
    }
}
