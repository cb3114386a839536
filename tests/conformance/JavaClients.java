// The Java clients against a broker: one named check a method, one line of outcome each.
// Run by test_java_clients.py.

import java.time.Duration;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

public class JavaClients extends Checks {
    public static void main(String[] arguments) throws Exception {
        run(JavaClients.class, arguments[0]);
    }

    // ---- producing and reading

    static void checkEveryCodecIsReadBackWithKeysHeadersAndTimestamps() throws Exception {
        String topic = created("codecs", 1);
        List<String> codecs = List.of("none", "gzip", "snappy", "lz4", "zstd");
        for (String codec : codecs) {
            try (var producer = producer(Map.of("compression.type", codec))) {
                for (int number = 0; number < 100; number++) {
                    var record = new ProducerRecord<>(topic, 0, 1_000L + number, codec, "value " + number);
                    record.headers().add(new RecordHeader("n", new byte[] {(byte) number}));
                    producer.send(record);
                }
                producer.flush();
            }
        }
        List<ConsumerRecord<String, String>> found = read(topic, 500);
        for (int index = 0; index < 500; index++) {
            var one = found.get(index);
            require(one.offset() == index, "offset " + one.offset());
            require(one.key().equals(codecs.get(index / 100)), "key " + one.key());
            require(one.value().equals("value " + index % 100), "value " + one.value());
            require(one.timestamp() == 1_000L + index % 100, "timestamp " + one.timestamp());
            require(one.headers().lastHeader("n").value()[0] == (byte) (index % 100), "header");
        }
    }

    static void checkAcknowledgementsOfNoneOneAndAllAreServed() throws Exception {
        String topic = created("acks", 1);
        for (String acks : List.of("0", "1", "all")) {
            try (var producer = producer(Map.of("acks", acks, "enable.idempotence", "false"))) {
                var told = producer.send(new ProducerRecord<>(topic, acks)).get();
                require(acks.equals("0") == !told.hasOffset(), "offset of acks " + acks);
            }
        }
        require(values(read(topic, 3)).equals(List.of("0", "1", "all")), "order");
    }

    static void checkARecordTooLargeIsRefusedAndTheNextIsWritten() throws Exception {
        String topic = created("large", 1, Map.of("max.message.bytes", "2000"));
        try (var producer = producer(Map.of())) {
            requireThrows(
                    RecordTooLargeException.class,
                    () -> producer.send(new ProducerRecord<>(topic, "x".repeat(5000))).get());
            producer.send(new ProducerRecord<>(topic, "small")).get();
        }
        require(values(read(topic, 1)).equals(List.of("small")), "values");
    }

    static void checkACompactedTopicRefusesRecordsWithoutKey() throws Exception {
        String topic = created("compacted", 1, Map.of("cleanup.policy", "compact"));
        try (var producer = producer(Map.of())) {
            requireThrows(
                    InvalidRecordException.class,
                    () -> producer.send(new ProducerRecord<>(topic, "no key")).get());
            producer.send(new ProducerRecord<>(topic, "key", "value")).get();
        }
    }

    static void checkATransactionalProducerFailsAtOnceForGood() throws Exception {
        try (var producer = producer(Map.of("transactional.id", "payments", "max.block.ms", "20000"))) {
            // A repeated request would end in a TimeoutException after max.block.ms.
            requireThrows(TransactionalIdAuthorizationException.class, producer::initTransactions);
            requireFatal(producer::beginTransaction);
            requireFatal(() -> producer.send(new ProducerRecord<>("any", "value")).get());
        }
    }

    static void requireFatal(Action action) throws Exception {
        try {
            action.run();
        } catch (KafkaException error) {
            require(error.getCause() instanceof TransactionalIdAuthorizationException, "" + error.getCause());
            return;
        }
        throw new AssertionError("a fatal error was expected");
    }

    static void checkTheBrokersTimeIsAnsweredAndReadWithLogAppendTime() throws Exception {
        String topic = created("appended", 1, Map.of("message.timestamp.type", "LogAppendTime"));
        long before = System.currentTimeMillis();
        long told;
        try (var producer = producer(Map.of())) {
            told = producer.send(new ProducerRecord<>(topic, 0, 5L, null, "v")).get().timestamp();
        }
        var found = read(topic, 1).get(0);
        require(told >= before && found.timestamp() == told, told + " " + found.timestamp());
        require(found.timestampType().name.equals("LogAppendTime"), "" + found.timestampType());
    }

    static void checkOffsetsByTimeAndTheEndsOfALog() throws Exception {
        String topic = created("times", 1);
        try (var producer = producer(Map.of("batch.size", "0"))) {
            for (long time : new long[] {100, 300, 200, 400})
                producer.send(new ProducerRecord<>(topic, 0, time, null, "" + time)).get();
        }
        var partition = new TopicPartition(topic, 0);
        try (var consumer = consumer(Map.of())) {
            require(consumer.beginningOffsets(List.of(partition)).get(partition) == 0, "beginning");
            require(consumer.endOffsets(List.of(partition)).get(partition) == 4, "end");
            var found = consumer.offsetsForTimes(Map.of(partition, 150L)).get(partition);
            require(found.offset() == 1 && found.timestamp() == 300, "" + found);
            require(consumer.offsetsForTimes(Map.of(partition, 401L)).get(partition) == null, "none");
        }
        var latest = admin.listOffsets(Map.of(partition, OffsetSpec.maxTimestamp())).all().get();
        require(latest.get(partition).offset() == 3, "" + latest);
    }

    static void checkAReaderOutOfRangeIsToldSo() throws Exception {
        String topic = created("range", 1);
        try (var consumer = consumer(Map.of("auto.offset.reset", "none"))) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            consumer.seek(new TopicPartition(topic, 0), 7);
            requireThrows(
                    org.apache.kafka.clients.consumer.OffsetOutOfRangeException.class,
                    () -> until(() -> !consumer.poll(Duration.ofMillis(200)).isEmpty()));
        }
    }

    static void checkAFetchSessionFollowsManyPartitions() throws Exception {
        String topic = created("session", 20);
        try (var producer = producer(Map.of());
                var consumer = consumer(Map.of("auto.offset.reset", "earliest"))) {
            var all = new ArrayList<TopicPartition>();
            for (int index = 0; index < 20; index++) all.add(new TopicPartition(topic, index));
            consumer.assign(all);
            for (int round = 0; round < 5; round++) {
                for (int index = 0; index < 20; index += 1 + round)
                    producer.send(new ProducerRecord<>(topic, index, null, round + "/" + index)).get();
                var expected = new TreeSet<String>();
                for (int index = 0; index < 20; index += 1 + round) expected.add(round + "/" + index);
                var found = new TreeSet<String>();
                until(() -> {
                    consumer.poll(Duration.ofMillis(200)).forEach(one -> found.add(one.value()));
                    return found.size() >= expected.size();
                });
                require(found.equals(expected), "round " + round + ": " + found);
                consumer.pause(List.of(all.get(3)));  // leaves the session, and comes back
                consumer.poll(Duration.ofMillis(1));
                consumer.resume(List.of(all.get(3)));
            }
        }
    }

    static void checkAGroupSharesPartitionsAndGoesOnWhereItCommitted() throws Exception {
        String topic = created("group", 4);
        try (var producer = producer(Map.of())) {
            for (int number = 0; number < 100; number++)
                producer.send(new ProducerRecord<>(topic, number % 4, null, "" + number));
        }
        var settings = Map.of("group.id", "java-group", "auto.offset.reset", "earliest");
        var seen = new TreeSet<String>();
        try (var one = consumer(settings); var other = consumer(settings)) {
            one.subscribe(List.of(topic));
            other.subscribe(List.of(topic));
            until(() -> {
                for (var consumer : List.of(one, other)) {
                    consumer.poll(Duration.ofMillis(100)).forEach(record -> seen.add(record.value()));
                }
                boolean shared = one.assignment().size() == 2 && other.assignment().size() == 2;
                return shared && seen.size() == 100 && isAtEnd(one) && isAtEnd(other);
            });
            one.commitSync();
            other.commitSync();
        }
        try (var producer = producer(Map.of()); var again = consumer(settings)) {
            producer.send(new ProducerRecord<>(topic, 2, null, "later")).get();
            again.subscribe(List.of(topic));
            var found = new ArrayList<String>();
            until(() -> {
                again.poll(Duration.ofMillis(100)).forEach(record -> found.add(record.value()));
                return !found.isEmpty();
            });
            require(found.equals(List.of("later")), "" + found);
        }
        var committed = admin.listConsumerGroupOffsets("java-group").partitionsToOffsetAndMetadata().get();
        require(committed.get(new TopicPartition(topic, 1)).offset() == 25, "" + committed);
    }

    static void checkAShareConsumerAcknowledgesWhatItReads() throws Exception {
        String topic = created("shared", 2);
        var group = new ConfigResource(ConfigResource.Type.GROUP, "java-share");
        alter(group, "share.auto.offset.reset", "earliest");
        try (var producer = producer(Map.of())) {
            for (int number = 0; number < 50; number++)
                producer.send(new ProducerRecord<>(topic, number % 2, null, "" + number));
        }
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers));
        settings.putAll(Map.of("group.id", "java-share", "share.acknowledgement.mode", "explicit"));
        var seen = new TreeMap<String, Integer>();
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            until(() -> {
                for (var record : consumer.poll(Duration.ofMillis(200))) {
                    int times = seen.merge(record.value(), 1, Integer::sum);
                    boolean again = record.value().equals("7") && times == 1;
                    consumer.acknowledge(record, again ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
                }
                consumer.commitSync();
                return seen.size() == 50 && seen.get("7") == 2;
            });
        }
        require(seen.values().stream().mapToInt(Integer::intValue).sum() == 51, "" + seen);
    }

    // ---- administration

    static void checkTopicsAreCreatedDescribedGrownAndDeleted() throws Exception {
        String topic = created("life", 2, Map.of("retention.ms", "1234"));
        requireThrows(
                TopicExistsException.class,
                () -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get());
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        var described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        require(described.partitions().size() == 5, "" + described);
        var byId = admin.describeTopics(TopicCollection.ofTopicIds(List.of(described.topicId())));
        require(byId.allTopicIds().get().get(described.topicId()).name().equals(topic), "by id");
        require(admin.listTopics().names().get().contains(topic), "listed");
        admin.deleteTopics(List.of(topic)).all().get();
        requireThrows(
                UnknownTopicOrPartitionException.class,
                () -> admin.describeTopics(List.of(topic)).allTopicNames().get());
    }

    static void checkSettingsOfTopicsBrokersAndGroupsAreAlteredAndShown() throws Exception {
        String topic = created("settings", 1);
        var resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        alter(resource, "cleanup.policy", "compact");
        var append = new AlterConfigOp(new ConfigEntry("cleanup.policy", "delete"), AlterConfigOp.OpType.APPEND);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(append))).all().get();
        var entry = shown(resource, "cleanup.policy");
        require(entry.value().equals("compact,delete"), "" + entry);
        require(entry.source() == ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, "" + entry);
        requireThrows(InvalidConfigurationException.class, () -> alter(resource, "retention.ms", "soon"));
        var broker = new ConfigResource(ConfigResource.Type.BROKER, "");
        alter(broker, "log.retention.ms", "7777777");
        require(shown(resource, "retention.ms").value().equals("7777777"), "default of the cluster");
        var undo = new AlterConfigOp(new ConfigEntry("log.retention.ms", null), AlterConfigOp.OpType.DELETE);
        admin.incrementalAlterConfigs(Map.of(broker, List.of(undo))).all().get();
        var group = new ConfigResource(ConfigResource.Type.GROUP, "no-such-group");
        alter(group, "share.auto.offset.reset", "earliest");
        require(shown(group, "share.auto.offset.reset").value().equals("earliest"), "group");
    }

    static void checkRecordsAreDeletedBeforeAnOffset() throws Exception {
        String topic = created("deleting", 1);
        var partition = new TopicPartition(topic, 0);
        try (var producer = producer(Map.of())) {
            for (int number = 0; number < 10; number++)
                producer.send(new ProducerRecord<>(topic, 0, null, "" + number)).get();
        }
        var deleted = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4)));
        require(deleted.lowWatermarks().get(partition).get().lowWatermark() == 4, "low watermark");
        require(values(read(topic, 6)).get(0).equals("4"), "first kept");
        requireThrows(
                org.apache.kafka.common.errors.OffsetOutOfRangeException.class,
                () -> admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(11))).all().get());
    }

    static void checkLogFoldersClusterAndProducersAreDescribed() throws Exception {
        String topic = created("folders", 1);
        var partition = new TopicPartition(topic, 0);
        try (var producer = producer(Map.of())) {
            producer.send(new ProducerRecord<>(topic, 0, null, "x".repeat(1000))).get();
            var active = admin.describeProducers(List.of(partition)).all().get().get(partition);
            require(active.activeProducers().size() == 1, "" + active.activeProducers());
        }
        int node = admin.describeCluster().nodes().get().iterator().next().id();
        var folders = admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node).values();
        var folder = folders.iterator().next();
        require(folder.replicaInfos().get(partition).size() > 1000, "" + folder);
        require(folder.totalBytes().getAsLong() > 0 && folder.usableBytes().getAsLong() > 0, "" + folder);
    }

    // ---- helpers

    static String created(String topic, int partitions) throws Exception {
        return created(topic, partitions, Map.of());
    }

    static String created(String topic, int partitions, Map<String, String> settings) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(settings))).all().get();
        return topic;
    }

    static void alter(ConfigResource resource, String name, String value) throws Exception {
        var set = new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
    }

    static ConfigEntry shown(ConfigResource resource, String name) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name);
    }

    static KafkaProducer<String, String> producer(Map<String, String> more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers));
        settings.put("delivery.timeout.ms", 20_000);
        settings.put("request.timeout.ms", 10_000);
        settings.putAll(more);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Map<String, String> more) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers));
        settings.put("enable.auto.commit", "false");
        settings.putAll(more);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    static List<ConsumerRecord<String, String>> read(String topic, int count) throws Exception {
        var found = new ArrayList<ConsumerRecord<String, String>>();
        try (var consumer = consumer(Map.of())) {
            var partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            until(() -> {
                consumer.poll(Duration.ofMillis(200)).forEach(found::add);
                return found.size() >= count;
            });
        }
        require(found.size() == count, found.size() + " records");
        return found;
    }

    static boolean isAtEnd(KafkaConsumer<String, String> consumer) {
        var ends = consumer.endOffsets(consumer.assignment());
        return ends.entrySet().stream().allMatch(one -> consumer.position(one.getKey()) == one.getValue());
    }

    static List<String> values(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).collect(Collectors.toList());
    }
}
