import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * An idempotent producer that sends numbered records at a steady rate.
 *
 * Arguments: the bootstrap server, the number of records per topic, the pause between two records of a topic in
 * milliseconds, the topics. The program sends the number -1 to the first topic, prints "ready", and waits for a byte on
 * standard input. Then it sends the numbers from 0 to partition 0 of each topic, each in a batch of its own. When all
 * of them are answered, it prints a line for each record: topic, number, error, with tabs between.
 */
final class SteadyProducer {
    public static void main(String[] arguments) throws Exception {
        int records = Integer.parseInt(arguments[1]);
        long pauseMs = Long.parseLong(arguments[2]);
        var lines = new ConcurrentLinkedQueue<String>();
        var settings = Map.<String, Object>of("bootstrap.servers", arguments[0], "batch.size", 1, "linger.ms", 0,
                "max.block.ms", 120_000);
        try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int i = 3; i < arguments.length; i++) {
                producer.partitionsFor(arguments[i]);
            }
            producer.send(record(arguments[3], -1)).get();
            System.out.println("ready");
            System.in.read();
            for (int number = 0; number < records; number++) {
                for (int i = 3; i < arguments.length; i++) {
                    String line = arguments[i] + "\t" + number + "\t";
                    producer.send(record(arguments[i], number),
                            (metadata, error) -> lines.add(error == null ? line : line + error));
                }
                Thread.sleep(pauseMs);
            }
            producer.flush();
        }
        lines.forEach(System.out::println);
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, int number) {
        return new ProducerRecord<>(topic, 0, bytes("steady"), bytes(Integer.toString(number)));
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
