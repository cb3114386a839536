// The Java share consumer alone with its records: acknowledgement, locks, limits, what records look like.
// One named check a method, one line of outcome each. Run by test_java_clients.py.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.internals.RecordHeader;

public class JavaShareConsumer extends Checks {
    public static void main(String[] arguments) throws Exception {
        run(JavaShareConsumer.class, arguments[0]);
    }

    // ---- acknowledgement

    static void checkImplicitModeAcceptsWithTheNextPollAndWithACommit() throws Exception {
        String queue = Sharer.queue("implicit", 1, 10);
        try (var member = new Sharer(queue, queue)) {
            require(Sharer.counts(member.take(10)).equals(List.of(1)), "delivery counts");
            require(Sharer.lag(queue) == 10, "accepted without a poll");
            until(() -> member.poll().isEmpty() && member.committed.size() == 10);
            require(Sharer.lag(queue) == 0, "not accepted by the next poll");
            Sharer.produce(queue, 1, 10, 5);
            member.take(5);
            member.commitWell();
            require(Sharer.lag(queue) == 0, "not accepted by the commit");
            requireThrows(IllegalStateException.class, () -> member.consumer.acknowledge(member.taken.get(14)));
            Sharer.produce(queue, 1, 15, 3);
            member.take(3);
        }
        try (var member = new Sharer(queue, queue)) {
            var again = member.take(3);  // what the last poll brought before the close was not accepted
            require(Sharer.values(again).equals(Sharer.numbers(15, 3)), "" + member.values());
            require(Sharer.counts(again).equals(List.of(2)), "delivery counts");
        }
    }

    static void checkEachRecordHasAVerdictOfItsOwn() throws Exception {
        String queue = Sharer.queue("verdicts", 1, 9);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            var records = member.first();
            require(records.size() == 9, records.size() + " records");
            requireThrows(IllegalStateException.class, () -> member.poll());  // verdicts are missing
            var kinds = List.of(AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT);
            for (var record : records) {
                int kind = Integer.parseInt(record.value()) % 3;
                member.consumer.acknowledge(record, kinds.get(kind));
            }
            member.commitWell();
            require(member.committed.size() == 9 && member.refused.isEmpty(), "" + member.refused);
            require(Sharer.lag(queue) == 3, "lag " + Sharer.lag(queue));
            var again = new ArrayList<ConsumerRecord<String, String>>();
            while (again.size() < 3) {
                for (var one : member.first()) {
                    member.consumer.acknowledge(one);
                    again.add(one);
                }
                member.commitWell();
            }
            require(Sharer.values(again).equals(List.of("1", "4", "7")), Sharer.values(again) + " came again");
            require(Sharer.counts(again).equals(List.of(2)), "delivery counts");
            require(Sharer.lag(queue) == 0 && member.poll().isEmpty(), "something is left");
            requireThrows(IllegalStateException.class, () -> member.consumer.acknowledge(again.get(0)));
        }
    }

    static void checkACommitWithoutWaitingIsToldToTheCallback() throws Exception {
        String queue = Sharer.queue("callback", 2, 20);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            while (member.taken.size() < 20) {
                member.verdict(member.first(), AcknowledgeType.ACCEPT);
                member.consumer.commitAsync();
            }
            until(() -> member.poll().isEmpty() && member.committed.size() == 10);  // offsets of two partitions
            require(member.refused.isEmpty(), "" + member.refused);
            until(() -> Sharer.lag(queue) == 0);
        }
    }

    static void checkARecordIsArchivedAfterItsLastDelivery() throws Exception {
        String queue = Sharer.queue("limit", 1, 1);
        Sharer.set(queue, "share.delivery.count.limit=3");
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            for (int delivery = 1; delivery <= 3; delivery++) {
                var records = member.first();
                require(Sharer.counts(records).equals(List.of(delivery)), "" + Sharer.counts(records));
                member.verdict(records, AcknowledgeType.RELEASE);
                member.commitWell();
            }
            require(Sharer.lag(queue) == 0, "it is not archived");
            Sharer.produce(queue, 1, 1, 1);
            require(member.first().get(0).value().equals("1"), "it came again");
        }
    }

    // ---- locks

    static void checkALockThatIsRenewedDoesNotEnd() throws Exception {
        String queue = Sharer.queue("renewal", 1, 2);
        Sharer.set(queue, "share.record.lock.duration.ms=4000");
        try (var holder = new Sharer(queue, queue, Sharer.EXPLICIT);
                var other = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            var records = holder.first();
            require(records.size() == 2, records.size() + " records");
            require(holder.consumer.acquisitionLockTimeoutMs().equals(Optional.of(4000)), "lock time");
            var renewed = records.get(0);
            holder.consumer.acknowledge(records.get(1), AcknowledgeType.ACCEPT);
            long end = System.nanoTime() + Duration.ofMillis(5500).toNanos();
            while (System.nanoTime() < end) {
                holder.consumer.acknowledge(renewed, AcknowledgeType.RENEW);
                holder.commitWell();
                renewed = holder.first().get(0);  // it is handed out again, for its verdict
                require(renewed.value().equals("0") && renewed.deliveryCount().get() == 1, "" + renewed);
                require(other.poll().isEmpty(), "given to another while it was renewed");
            }
            holder.consumer.acknowledge(renewed, AcknowledgeType.ACCEPT);
            holder.commitWell();
        }
        require(Sharer.lag(queue) == 0, "lag " + Sharer.lag(queue));
    }

    static void checkARenewalIsRefusedWhereTheGroupForbidsIt() throws Exception {
        String queue = Sharer.queue("no-renewal", 1, 1);
        Sharer.set(queue, "share.renew.acknowledge.enable=false");
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            member.verdict(member.first(), AcknowledgeType.RENEW);
            var wrong = member.commit();
            require(wrong.size() == 1 && wrong.get(0) instanceof InvalidRecordStateException, "" + wrong);
        }
    }

    static void checkALateVerdictIsRefusedAndTheNextHolderDecides() throws Exception {
        String queue = Sharer.queue("late", 1, 10);
        Sharer.set(queue, "share.record.lock.duration.ms=1000");
        try (var slow = new Sharer(queue, queue, Sharer.EXPLICIT);
                var other = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            var held = slow.first();
            require(held.size() == 10, held.size() + " records");
            Sharer.set(queue, "share.record.lock.duration.ms=30000");  // for those to come
            var again = other.first();
            require(Sharer.values(again).equals(Sharer.values(held)), "" + other.values());
            var counts = Sharer.counts(again);  // more than 2 where a fetch of `slow` still waited
            require(counts.size() == 1 && counts.get(0) >= 2, "" + counts);
            slow.verdict(held, AcknowledgeType.REJECT);
            var wrong = slow.commit();
            require(wrong.size() == 1 && wrong.get(0) instanceof InvalidRecordStateException, "" + wrong);
            require(Sharer.lag(queue) == 10, "a late verdict counted");
            other.verdict(again, AcknowledgeType.ACCEPT);
            other.commitWell();
            require(Sharer.lag(queue) == 0, "lag");
            Sharer.produce(queue, 1, 10, 1);
            until(() -> {  // a fetch of `slow` that still waited may have brought the others again
                var records = slow.poll();
                slow.verdict(records, AcknowledgeType.ACCEPT);
                slow.commit();
                return Sharer.values(records).contains("10");
            });
            require(Sharer.lag(queue) == 0, "the late one does not work on");
        }
    }

    // ---- how much at once

    static void checkARecordLimitIsExact() throws Exception {
        String queue = Sharer.queue("exact", 1, 0);
        Sharer.produceBatches(queue, 2, 50);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT, Sharer.EXACT, "max.poll.records=7")) {
            var sizes = new ArrayList<Integer>();
            while (member.taken.size() < 100) {
                var records = member.first();
                sizes.add(records.size());
                member.verdict(records, AcknowledgeType.ACCEPT);
            }
            member.commitWell();
            require(Collections.max(sizes) == 7 && sizes.size() <= 17, "" + sizes);
            require(member.values().equals(Sharer.numbers(0, 100)), "" + member.values());
            require(Sharer.counts(member.taken).equals(List.of(1)), "delivery counts");
        }
        require(Sharer.lag(queue) == 0, "lag");
    }

    static void checkWholeBatchesAreAcquiredOtherwise() throws Exception {
        String queue = Sharer.queue("batches", 1, 0);
        Sharer.produceBatches(queue, 4, 9);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT, "max.poll.records=20")) {
            var sizes = new ArrayList<Integer>();
            while (member.taken.size() < 36) {
                var records = member.first();
                sizes.add(records.size());
                member.verdict(records, AcknowledgeType.ACCEPT);
            }
            require(sizes.equals(List.of(27, 9)), "" + sizes);
            require(member.values().equals(Sharer.numbers(0, 36)), "" + member.values());
        }
    }

    static void checkRecordsLargerThanAFetchComeOneByOne() throws Exception {
        String queue = Sharer.queue("large", 1, 0);
        try (var producer = Sharer.producer()) {
            for (int number = 0; number < 5; number++)
                producer.send(new ProducerRecord<>(queue, 0, "" + number, ("" + number).repeat(900_000))).get();
        }
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT, "fetch.max.bytes=1000")) {
            member.accept(5);
            require(member.taken.stream().allMatch(one -> one.value().equals(one.key().repeat(900_000))), "values");
            require(Sharer.counts(member.taken).equals(List.of(1)), "delivery counts");
        }
        require(Sharer.lag(queue) == 0, "lag");
    }

    // ---- what records look like

    static void checkEveryCodecWithOneReleasedInTheMiddleOfABatch() throws Exception {
        String queue = Sharer.queue("codecs", 1, 0);
        var codecs = List.of("none", "gzip", "snappy", "lz4", "zstd");
        for (String codec : codecs)
            try (var producer = Sharer.producer("compression.type=" + codec, "linger.ms=60000", "batch.size=1000000")) {
                for (int number = 0; number < 100; number++) {
                    var record = new ProducerRecord<>(queue, 0, 1000L + number, codec, "value " + number);
                    record.headers().add(new RecordHeader("n", new byte[] {(byte) number}));
                    producer.send(record);
                }
            }
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            var seen = new TreeMap<Long, Integer>();
            while (Sharer.lag(queue) > 0) {
                for (var one : member.first()) {
                    int number = (int) (one.offset() % 100);
                    require(one.key().equals(codecs.get((int) (one.offset() / 100))), "key of " + one);
                    require(one.value().equals("value " + number) && one.timestamp() == 1000 + number, "" + one);
                    require(one.headers().lastHeader("n").value()[0] == (byte) number, "header of " + one);
                    int times = seen.merge(one.offset(), 1, Integer::sum);
                    require(one.deliveryCount().get() == times, one + " for the " + times + ". time");
                    boolean again = number == 57 && times == 1;
                    member.consumer.acknowledge(one, again ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                }
                member.commitWell();
            }
            require(member.taken.size() == 505 && seen.size() == 500, member.taken.size() + " deliveries");
        }
    }

    static void checkGapsOfACompactedTopicAreFinishedBySomebody() throws Exception {
        int count = 400;
        String queue = Sharer.created(
                "compacted", 1, "cleanup.policy=compact", "segment.bytes=2000", "min.cleanable.dirty.ratio=0.01");
        Sharer.set(queue, "share.auto.offset.reset=earliest");
        try (var producer = Sharer.producer("linger.ms=60000")) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(queue, 0, "" + number % 40, "" + number));
                if (number % 10 == 9) producer.flush();
            }
        }
        var left = new ArrayList<String>();
        until(() -> {
            left.clear();
            left.addAll(readAll(queue, count));
            return left.size() < count / 2;  // 40 keys, and what the active segment has
        });
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            until(() -> {
                member.poll().forEach(member.consumer::acknowledge);
                member.commitWell();
                return Sharer.lag(queue) == 0;
            });
            // The log goes on being cleaned: what is gone by now may not have come.
            var values = member.values();
            require(values.equals(Sharer.which(left, values::contains)), values + " instead of " + left);
            require(values.containsAll(readAll(queue, count)), values + " are not all");
            require(Sharer.counts(member.taken).equals(List.of(1)), "delivery counts");
        }
    }

    // ---- a consumer that is disturbed

    static void checkAWakeupEndsAPollAndLosesNothing() throws Exception {
        String queue = Sharer.queue("woken", 1, 0);
        try (var member = new Sharer(queue, queue)) {
            member.poll();
            var waker = Executors.newSingleThreadScheduledExecutor();
            waker.schedule(member.consumer::wakeup, 300, TimeUnit.MILLISECONDS);
            requireThrows(WakeupException.class, () -> member.consumer.poll(Duration.ofMinutes(1)));
            Sharer.produce(queue, 1, 0, 3);
            member.consumer.wakeup();
            requireThrows(WakeupException.class, () -> member.consumer.poll(Duration.ofMinutes(1)));
            require(Sharer.values(member.take(3)).equals(Sharer.numbers(0, 3)), "" + member.values());
            waker.shutdown();
        }
    }

    static void checkARecordThatCannotBeReadIsRejectedByItsOffset() throws Exception {
        String queue = Sharer.queue("unreadable", 1, 2);
        try (var producer = Sharer.producer()) {
            producer.send(new ProducerRecord<>(queue, 0, null, Sharer.UNREADABLE)).get();
        }
        Sharer.produce(queue, 1, 2, 2);
        try (var member = new Sharer(queue, queue, Sharer.EXPLICIT)) {
            int unreadable = 0;
            while (Sharer.lag(queue) > 0)
                try {
                    member.poll().forEach(member.consumer::acknowledge);
                    member.commitWell();
                } catch (RecordDeserializationException error) {
                    unreadable++;
                    require(error.topicPartition().equals(new TopicPartition(queue, 0)), "" + error);
                    member.consumer.acknowledge(queue, 0, error.offset(), AcknowledgeType.REJECT);
                }
            require(unreadable == 1, unreadable + " times");
            require(member.values().equals(Sharer.numbers(0, 4)), "" + member.values());
        }
    }

    /** The values of an ordinary consumer that reads up to offset `end`. */
    static List<String> readAll(String topic, long end) {
        var found = new ArrayList<String>();
        var partition = new TopicPartition(topic, 0);
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "auto.offset.reset", "earliest");
        var strings = new org.apache.kafka.common.serialization.StringDeserializer();
        try (var consumer = new KafkaConsumer<>(settings, strings, strings)) {
            consumer.assign(List.of(partition));
            until(() -> {
                consumer.poll(Sharer.SHORTLY).forEach(one -> found.add(one.value()));
                return consumer.position(partition) >= end;
            });
        } catch (org.apache.kafka.common.errors.TimeoutException error) {
            throw new AssertionError(error);
        }
        return found;
    }
}
