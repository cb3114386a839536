import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads records as members of a share group, for bench/share.py, which asks for one round a line.
 *
 * <p>In: {@code servers topic group consumers records}. Out: {@code begun} once every consumer had
 * its first records and acknowledged them, then {@code records seconds} and the count of each
 * consumer. One process serves all rounds of all brokers, so its compiler is warm for both.
 */
public class ShareReader {
    static final Duration POLL = Duration.ofMillis(500);

    public static void main(String[] args) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            System.out.println(round(words[0], words[1], words[2], Integer.parseInt(words[3]), Long.parseLong(words[4])));
        }
    }

    static String round(String servers, String topic, String group, int consumers, long wanted) throws Exception {
        var total = new AtomicLong();
        var each = new AtomicLongArray(consumers);
        var times = new long[2];
        var begin = new CyclicBarrier(consumers, () -> {
            System.out.println("begun");
            times[0] = System.nanoTime();
        });
        var threads = new Thread[consumers];
        for (int index = 0; index < consumers; index++) {
            int mine = index;
            threads[index] = new Thread(() -> {
                try (var consumer = consumer(servers, group)) {
                    consumer.subscribe(java.util.List.of(topic));
                    long before = 0;
                    while (before == 0) {
                        before = consumer.poll(POLL).count();
                    }
                    consumer.commitSync();
                    total.addAndGet(before);
                    begin.await();
                    while (total.get() < wanted) {
                        int count = consumer.poll(POLL).count();
                        each.addAndGet(mine, count);
                        total.addAndGet(count);
                    }
                    consumer.commitSync();
                    synchronized (times) {
                        times[1] = Math.max(times[1], System.nanoTime());
                    }
                } catch (Exception fault) {
                    fault.printStackTrace();
                    System.exit(1);
                }
            });
            threads[index].start();
        }
        for (var thread : threads) {
            thread.join();
        }
        long sum = 0;
        var counts = new StringBuilder();
        for (int index = 0; index < consumers; index++) {
            sum += each.get(index);
            counts.append(' ').append(each.get(index));
        }
        return sum + " " + (times[1] - times[0]) / 1e9 + counts;
    }

    static KafkaShareConsumer<byte[], byte[]> consumer(String servers, String group) {
        var settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        return new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }
}
