// A worker of a share group as a process of its own, as share_worker.py is, with Java's consumer.

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class ShareWorker {
    static final int RELEASED = 3, REJECTED = 7;  // last digits of offsets
    static final ObjectMapper JSON = new ObjectMapper();
    static final BlockingQueue<String> orders = new LinkedBlockingQueue<>();

    public static void main(String[] arguments) throws Exception {
        var listener = new Thread(ShareWorker::listen);
        listener.setDaemon(true);
        listener.start();
        boolean explicit = arguments[3].equals("explicit");
        Map<String, Object> settings = Map.of(
                "bootstrap.servers", arguments[0], "group.id", arguments[1],
                "share.acknowledgement.mode", arguments[3], "max.poll.records", 20);
        var bytes = new ByteArrayDeserializer();
        String order = "";
        try (var consumer = new KafkaShareConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(arguments[2]));
            while (!order.equals("stop")) {
                var records = consumer.poll(Duration.ofMillis(100));
                if (!records.isEmpty()) tell(Map.of("took", taken(records)));
                while (!orders.isEmpty() || (order.equals("hold") && !records.isEmpty())) order = orders.take();
                if (!records.isEmpty()) settle(consumer, records, explicit);
            }
        }
    }

    static void listen() {
        new BufferedReader(new InputStreamReader(System.in)).lines().forEach(orders::add);
        orders.add("stop");
    }

    static List<List<Long>> taken(ConsumerRecords<byte[], byte[]> records) {
        var found = new ArrayList<List<Long>>();
        for (var one : records)
            found.add(List.of((long) one.partition(), one.offset(), (long) one.deliveryCount().get()));
        return found;
    }

    static AcknowledgeType verdict(ConsumerRecord<byte[], byte[]> record) {
        if (record.offset() % 10 == RELEASED && record.deliveryCount().get() == 1) return AcknowledgeType.RELEASE;
        return record.offset() % 10 == REJECTED ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
    }

    /** Give each record its verdict; tell of those that the broker has confirmed. */
    static void settle(
            KafkaShareConsumer<byte[], byte[]> consumer, ConsumerRecords<byte[], byte[]> records, boolean explicit)
            throws Exception {
        if (explicit) records.forEach(one -> consumer.acknowledge(one, verdict(one)));
        var well = new HashSet<Integer>();
        var failed = new ArrayList<String>();
        for (var outcome : consumer.commitSync(Duration.ofSeconds(30)).entrySet()) {
            TopicIdPartition where = outcome.getKey();
            if (outcome.getValue().isEmpty()) well.add(where.partition());
            else failed.add(outcome.getValue().get().getClass().getSimpleName());
        }
        var done = new ArrayList<List<Object>>();
        for (var one : records)
            if (well.contains(one.partition())) {
                var kind = explicit ? verdict(one) : AcknowledgeType.ACCEPT;
                done.add(List.of(one.partition(), one.offset(), kind.name()));
            }
        tell(Map.of("settled", done, "failed", failed));
    }

    static void tell(Map<String, Object> told) throws Exception {
        System.out.println(JSON.writeValueAsString(told));
        System.out.flush();
    }
}
