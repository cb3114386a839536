// A Java share consumer with what it was given and told so far, and what checks of share groups are made of.

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.function.Predicate;
import java.util.stream.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.serialization.*;

class Sharer implements AutoCloseable {
    static final String EXPLICIT = "share.acknowledgement.mode=explicit";
    static final String EXACT = "share.acquire.mode=record_limit";
    static final String UNREADABLE = "unreadable";
    static final Duration SHORTLY = Duration.ofMillis(50);

    final KafkaShareConsumer<String, String> consumer;
    final List<ConsumerRecord<String, String>> taken = new ArrayList<>();
    final Set<Long> committed = new TreeSet<>();  // offsets that a callback told of
    final List<Exception> refused = new ArrayList<>();

    /** Settings as name=value. */
    Sharer(String group, String topic, String... settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", Checks.servers, "group.id", group));
        for (String one : settings) all.put(one.split("=")[0], one.split("=")[1]);
        consumer = new KafkaShareConsumer<>(all, new StringDeserializer(), new Choosy());
        consumer.setAcknowledgementCommitCallback((offsets, error) -> {
            if (error == null) offsets.values().forEach(committed::addAll);
            else refused.add(error);
        });
        consumer.subscribe(List.of(topic));
    }

    /** What one poll brings. */
    List<ConsumerRecord<String, String>> poll() {
        var found = new ArrayList<ConsumerRecord<String, String>>();
        consumer.poll(SHORTLY).forEach(found::add);
        taken.addAll(found);
        return found;
    }

    /** Exactly so many records by one or more polls that are each accepted by the next. */
    List<ConsumerRecord<String, String>> take(int count) throws Exception {
        var found = new ArrayList<ConsumerRecord<String, String>>();
        Checks.until(() -> {
            found.addAll(poll());
            return found.size() >= count;
        });
        Checks.require(found.size() == count, found.size() + " records, not " + count);
        return found;
    }

    /** What the first poll brings that brings anything: in explicit mode the next is allowed after verdicts only. */
    List<ConsumerRecord<String, String>> first() throws Exception {
        var found = new ArrayList<ConsumerRecord<String, String>>();
        Checks.until(() -> found.addAll(poll()));
        return found;
    }

    /** Take and accept until there were so many records. */
    Sharer accept(int count) throws Exception {
        int enough = taken.size() + count;
        Checks.until(() -> {
            poll().forEach(record -> consumer.acknowledge(record));
            commit();
            return taken.size() >= enough;
        });
        return this;
    }

    void verdict(Iterable<ConsumerRecord<String, String>> records, AcknowledgeType type) {
        records.forEach(record -> consumer.acknowledge(record, type));
    }

    /** Commit and wait; what went wrong. */
    List<KafkaException> commit() {
        return consumer.commitSync().values().stream().flatMap(Optional::stream).toList();
    }

    void commitWell() {
        var wrong = commit();
        Checks.require(wrong.isEmpty(), "" + wrong);
    }

    List<String> values() {
        return taken.stream().map(ConsumerRecord::value).toList();
    }

    public void close() {
        consumer.close();
    }

    /** Reads every text but one. */
    static class Choosy extends StringDeserializer {
        @Override
        public String deserialize(String topic, Headers headers, ByteBuffer data) {
            String value = super.deserialize(topic, headers, data);
            if (value.equals(UNREADABLE)) throw new SerializationException(value);
            return value;
        }
    }

    // ---- the world around

    static String created(String topic, int partitions, String... settings) throws Exception {
        var configs = Stream.of(settings).collect(Collectors.toMap(one -> one.split("=")[0], one -> one.split("=")[1]));
        Checks.admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all().get();
        return topic;
    }

    /** A topic with records "0" and up, and a group of the same name that begins with the first. */
    static String queue(String topic, int partitions, int records) throws Exception {
        created(topic, partitions);
        set(topic, "share.auto.offset.reset=earliest");
        produce(topic, partitions, 0, records);
        return topic;
    }

    static void set(String group, String... settings) throws Exception {
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        var all = Stream.of(settings).map(one -> one.split("=")).map(one -> new AlterConfigOp(
                new ConfigEntry(one[0], one[1]), AlterConfigOp.OpType.SET)).toList();
        Checks.admin.incrementalAlterConfigs(Map.of(resource, all)).all().get();
    }

    static KafkaProducer<String, String> producer(String... settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", Checks.servers));
        for (String one : settings) all.put(one.split("=")[0], one.split("=")[1]);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    /** One batch for each partition, so that no member is given a part of them. */
    static void produce(String topic, int partitions, int first, int count) {
        try (var producer = producer("linger.ms=60000")) {
            for (int number = first; number < first + count; number++)
                producer.send(new ProducerRecord<>(topic, number % partitions, null, "" + number));
        }
    }

    /** Batches of so many records each, in a topic of one partition. */
    static void produceBatches(String topic, int batches, int each) {
        try (var producer = producer("linger.ms=60000", "batch.size=1000000")) {
            for (int number = 0; number < batches * each; number++) {
                producer.send(new ProducerRecord<>(topic, 0, null, "" + number));
                if (number % each == each - 1) producer.flush();
            }
        }
    }

    static ShareGroupDescription described(String group) throws Exception {
        return Checks.admin.describeShareGroups(List.of(group)).all().get().get(group);
    }

    static boolean hasMembers(String group, int members, int partitions) {
        try {
            var found = described(group).members();
            int assigned = found.stream().mapToInt(one -> one.assignment().topicPartitions().size()).sum();
            return found.size() == members && assigned == partitions;
        } catch (ExecutionException error) {
            if (error.getCause() instanceof GroupIdNotFoundException) return false;  // nobody has joined yet
            throw new AssertionError(error);
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    static Map<TopicPartition, SharePartitionOffsetInfo> offsets(String group) throws Exception {
        var spec = Map.of(group, new ListShareGroupOffsetsSpec());
        return Checks.admin.listShareGroupOffsets(spec).partitionsToOffsetInfo(group).get();
    }

    /** All records of a group's topics that are not finished; very many while nobody has subscribed. */
    static long lag(String group) {
        try {
            var known = offsets(group).values();
            return known.isEmpty() ? Long.MAX_VALUE : known.stream().mapToLong(one -> one.lag().get()).sum();
        } catch (Exception error) {
            throw new AssertionError(error);
        }
    }

    static List<Integer> counts(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(record -> (int) record.deliveryCount().get()).distinct().toList();
    }

    static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).toList();
    }

    static List<String> numbers(int first, int count) {
        return IntStream.range(first, first + count).mapToObj(Integer::toString).toList();
    }

    static List<String> sorted(Collection<String> numbers) {
        return numbers.stream().sorted(Comparator.comparing(Integer::valueOf)).toList();
    }

    static <T> List<T> which(List<T> all, Predicate<T> condition) {
        return all.stream().filter(condition).toList();
    }
}
