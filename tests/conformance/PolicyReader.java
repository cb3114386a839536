// Consumers of policy_readers.py with Java's client, in a process of their own. Lines on the standard input
// are orders, each answered with a line of JSON: `open ID GROUP PROTOCOL SECONDS TOPIC` (a topic that
// begins with ^ is a pattern; SECONDS is the age of metadata), `poll ID`, `commit ID`, `close ID`.

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.*;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;

public class PolicyReader {
    static final Map<String, KafkaConsumer<String, String>> consumers = new HashMap<>();
    static String servers;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[0];
        var json = new ObjectMapper();
        for (String line : (Iterable<String>) new BufferedReader(new InputStreamReader(System.in)).lines()::iterator)
            System.out.println(json.writeValueAsString(obeyed(line.split(" "))));
        System.exit(0);
    }

    static List<?> obeyed(String[] order) {
        var consumer = consumers.get(order[1]);
        switch (order[0]) {
            case "open" -> open(order);
            case "poll" -> {
                var found = new ArrayList<List<String>>();
                for (var one : consumer.poll(Duration.ofMillis(50)))
                    found.add(List.of(one.topic() + "-" + one.partition(), one.value()));
                var owned = consumer.assignment().stream().map(Object::toString).sorted().toList();
                return List.of(found, owned);
            }
            case "commit" -> {
                try {
                    consumer.commitSync();
                } catch (RebalanceInProgressException | CommitFailedException error) {
                    // it goes on from what it committed before
                }
            }
            default -> consumers.remove(order[1]).close();
        }
        return List.of();
    }

    static void open(String[] order) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", servers, "group.id", order[2]));
        settings.put("group.protocol", order[3]);
        settings.put("metadata.max.age.ms", Long.parseLong(order[4]) * 1000);
        settings.put("auto.offset.reset", "latest");
        settings.put("enable.auto.commit", "false");
        if (order[3].equals("classic")) settings.put("heartbeat.interval.ms", 200);
        var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        if (!order[5].startsWith("^")) consumer.subscribe(List.of(order[5]));
        else if (order[3].equals("classic")) consumer.subscribe(Pattern.compile(order[5]));
        else consumer.subscribe(new SubscriptionPattern(order[5].substring(1)));
        consumers.put(order[1], consumer);
    }
}
