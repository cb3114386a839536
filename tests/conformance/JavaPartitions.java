// Prints the partition that Java's producer chooses for each key: the first argument is the number of
// partitions, keys come in hexadecimal digits, a line each.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HexFormat;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;

public class JavaPartitions {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] key = HexFormat.of().parseHex(line);
            System.out.println(BuiltInPartitioner.partitionForKey(key, count));
        }
    }
}
