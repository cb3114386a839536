// Apache Kafka's own command-line programs, many in one JVM, and members of groups for them to look at.
// Run by side_by_side.py.  GroupTools <bootstrap servers>
// Each line of the standard input is one order in JSON, each line of the standard output its answer.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import java.util.function.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Exit;

public class GroupTools {
    static final long WAIT_NANOS = Duration.ofSeconds(60).toNanos();
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, Member> members = new HashMap<>();
    static final Map<String, ShareMember> sharers = new HashMap<>();
    static String servers;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        PrintStream answers = System.out;
        admin = Admin.create(Map.of("bootstrap.servers", servers));
        Exit.setShutdownHookAdder((name, hook) -> {});
        var orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null; ) {
            Map<String, Object> answer;
            try {
                answer = obey(JSON.readTree(line));
            } catch (Exception error) {
                answer = Map.of("failed", "" + error);
                error.printStackTrace();
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    static Map<String, Object> obey(JsonNode order) throws Exception {
        String name = order.path("name").asText();
        switch (order.path("order").asText()) {
            case "run":
                return run(name, texts(order.path("arguments")));
            case "create":
                var topic = new NewTopic(name, order.path("partitions").asInt(), (short) 1);
                admin.createTopics(List.of(topic)).all().get();
                break;
            case "delete":
                admin.deleteTopics(List.of(name)).all().get();
                until(() -> !hasOffsets(order.path("group").asText(), name), () -> "offsets outlive " + name);
                break;
            case "produce":
                produce(name, order);
                break;
            case "join":
                members.put(name, new Member(order));
                break;
            case "subscribe":
                members.get(name).does(consumer -> consumer.subscribe(texts(order.path("topics"))));
                break;
            case "commit":
                members.get(name).does(consumer -> consumer.commitSync(offsets(order.path("offsets"))));
                break;
            case "read":
                var member = members.get(name);
                until(() -> member.records == order.path("count").asInt(), () -> member.records + " records");
                member.does(consumer -> consumer.commitSync());
                break;
            case "own":
                own(order.path("counts"));
                break;
            case "leave":
                members.remove(name).leave();
                break;
            case "share":
                sharers.put(name, new ShareMember(order));
                break;
            case "shared":
                shared(name, order.path("members").asInt(), order.path("partitions").asInt());
                break;
            case "accepted":
                var sharer = sharers.get(name);
                until(() -> sharer.accepted == order.path("count").asInt(), () -> sharer.accepted + " accepted");
                break;
            case "unshare":
                sharers.remove(name).leave();
                break;
            default:
                throw new IllegalArgumentException("" + order);
        }
        return Map.of();
    }

    /** The outcome of a program: what it printed up to its exit, and its exit code. */
    static Map<String, Object> run(String program, List<String> arguments) throws Exception {
        PrintStream realOut = System.out, realError = System.err;
        var out = new ByteArrayOutputStream();
        var error = new ByteArrayOutputStream();
        var outcome = new HashMap<String, Object>();
        Exit.setExitProcedure((code, message) -> {
            told(outcome, code, out, error);
            throw new Exited();
        });
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(error, true, StandardCharsets.UTF_8));
        try {
            var main = Class.forName(program).getMethod("main", String[].class);
            main.invoke(null, (Object) arguments.toArray(new String[0]));
            told(outcome, 0, out, error);
        } catch (java.lang.reflect.InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Exited)) throw failure;
        } finally {
            System.setOut(realOut);
            System.setErr(realError);
            Exit.resetExitProcedure();
        }
        return outcome;
    }

    /** Where a program would have ended; what it prints after that is an artefact of going on. */
    static void told(Map<String, Object> outcome, int code, ByteArrayOutputStream out, ByteArrayOutputStream error) {
        if (!outcome.isEmpty()) return;
        outcome.put("code", code);
        outcome.put("out", out.toString(StandardCharsets.UTF_8));
        outcome.put("error", error.toString(StandardCharsets.UTF_8));
    }

    static class Exited extends Error {}

    /** `count` records to every partition, a second of record time apart from `time` on. */
    static void produce(String topic, JsonNode order) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "delivery.timeout.ms", 20_000, "request.timeout.ms", 10_000);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int partition = 0; partition < order.path("partitions").asInt(); partition++)
                for (int number = 0; number < order.path("count").asInt(); number++) {
                    long time = order.path("time").asLong() + 1000L * number;
                    producer.send(new ProducerRecord<>(topic, partition, time, null, "" + number)).get();
                }
        }
    }

    /** Wait until each of the named members owns that many partitions, all at the same time. */
    static void own(JsonNode counts) throws Exception {
        var found = new TreeMap<String, Integer>();
        var wanted = new TreeMap<String, Integer>();
        counts.properties().forEach(one -> wanted.put(one.getKey(), one.getValue().asInt()));
        until(() -> {
            wanted.keySet().forEach(name -> found.put(name, members.get(name).owned));
            return found.equals(wanted);
        }, () -> found + " instead of " + wanted);
    }

    /** Wait until a share group has that many members, which are assigned that many partitions in all. */
    static void shared(String group, int members, int partitions) throws Exception {
        var found = new int[2];
        until(() -> {
            try {
                var described = admin.describeShareGroups(List.of(group)).all().get().get(group).members();
                found[0] = described.size();
                found[1] = described.stream().mapToInt(one -> one.assignment().topicPartitions().size()).sum();
            } catch (InterruptedException | ExecutionException error) {
                return false;  // there is no such group yet
            }
            return found[0] == members && found[1] == partitions;
        }, () -> Arrays.toString(found) + " instead of " + members + ", " + partitions);
    }

    static boolean hasOffsets(String group, String topic) {
        try {
            var found = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            return found.keySet().stream().anyMatch(partition -> partition.topic().equals(topic));
        } catch (InterruptedException | ExecutionException error) {
            throw new IllegalStateException(error);
        }
    }

    static void until(BooleanSupplier done, Supplier<String> otherwise) throws Exception {
        long end = System.nanoTime() + WAIT_NANOS;
        while (!done.getAsBoolean()) {
            for (var member : members.values())
                if (member.failure != null) throw new IllegalStateException(member.getName(), member.failure);
            for (var member : sharers.values())
                if (member.failure != null) throw new IllegalStateException(member.getName(), member.failure);
            if (System.nanoTime() > end) throw new TimeoutException(otherwise.get());
            Thread.sleep(5);
        }
    }

    /** A member of a group on a thread of its own, which polls until it is to leave. */
    static class Member extends Thread {
        final KafkaConsumer<byte[], byte[]> consumer;
        final BlockingQueue<FutureTask<Void>> tasks = new LinkedBlockingQueue<>();
        volatile int owned, records;
        volatile boolean leaving;
        volatile Exception failure;

        interface Task {
            void with(KafkaConsumer<byte[], byte[]> consumer);
        }

        Member(JsonNode order) {
            Map<String, Object> settings = new HashMap<>();
            settings.put("bootstrap.servers", servers);
            settings.put("group.id", order.path("group").asText());
            settings.put("client.id", order.path("name").asText());
            settings.put("enable.auto.commit", false);
            settings.put("heartbeat.interval.ms", 100);
            order.path("settings").properties().forEach(one -> settings.put(one.getKey(), one.getValue().asText()));
            if ("consumer".equals(settings.get("group.protocol"))) settings.remove("heartbeat.interval.ms");
            consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            if (order.has("pattern")) consumer.subscribe(new SubscriptionPattern(order.path("pattern").asText()));
            else consumer.subscribe(texts(order.path("topics")));
            setName(order.path("name").asText());
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            try (consumer) {
                while (!leaving) {
                    records += consumer.poll(Duration.ofMillis(20)).count();
                    owned = consumer.assignment().size();
                    for (FutureTask<Void> task; (task = tasks.poll()) != null; ) task.run();
                }
            } catch (Exception error) {
                failure = error;
            }
        }

        void does(Task task) throws Exception {
            var queued = new FutureTask<Void>(() -> {
                task.with(consumer);
                return null;
            });
            tasks.add(queued);
            queued.get(30, TimeUnit.SECONDS);
        }

        void leave() throws InterruptedException {
            leaving = true;
            join(30_000);
        }
    }

    /** A member of a share group on a thread of its own, which accepts all that it is given until it is to leave. */
    static class ShareMember extends Thread {
        final KafkaShareConsumer<byte[], byte[]> consumer;
        volatile int accepted;
        volatile boolean leaving;
        volatile Exception failure;

        ShareMember(JsonNode order) {
            Map<String, Object> settings = new HashMap<>();
            settings.put("bootstrap.servers", servers);
            settings.put("group.id", order.path("group").asText());
            settings.put("client.id", order.path("name").asText());
            consumer = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            consumer.subscribe(texts(order.path("topics")));
            setName(order.path("name").asText());
            setDaemon(true);
            start();
        }

        @Override
        public void run() {
            try (consumer) {
                while (!leaving) {
                    int count = consumer.poll(Duration.ofMillis(100)).count();
                    consumer.commitSync();
                    accepted += count;
                }
            } catch (Exception error) {
                failure = error;
            }
        }

        void leave() throws InterruptedException {
            leaving = true;
            join(30_000);
        }
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(JsonNode given) {
        var found = new HashMap<TopicPartition, OffsetAndMetadata>();
        for (var one : given.properties()) {
            int dash = one.getKey().lastIndexOf('-');
            var partition = new TopicPartition(one.getKey().substring(0, dash), Integer.parseInt(one.getKey().substring(dash + 1)));
            found.put(partition, new OffsetAndMetadata(one.getValue().asLong()));
        }
        return found;
    }

    static List<String> texts(JsonNode array) {
        var found = new ArrayList<String>();
        array.forEach(one -> found.add(one.asText()));
        return found;
    }
}
