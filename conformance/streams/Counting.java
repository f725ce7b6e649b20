import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Counts the records of each key with exactly_once_v2: each record brings its key's new count to the output.
 *
 * Arguments: the bootstrap server, the application id, the topics of input and output, the folder of the state. Prints
 * "ready" when its tasks run, and runs until it is killed. The input passes through a repartition topic, and the
 * counts are in a state store with a changelog.
 */
final class Counting {
    public static void main(String[] arguments) throws Exception {
        var settings = new Properties();
        settings.putAll(Map.of("bootstrap.servers", arguments[0], "application.id", arguments[1], "state.dir",
                arguments[4], "processing.guarantee", "exactly_once_v2", "commit.interval.ms", 100,
                "statestore.cache.max.bytes", 0, "num.stream.threads", 2, "replication.factor", 1,
                "consumer.session.timeout.ms", 6000));
        settings.put("consumer.auto.offset.reset", "earliest");
        settings.put("producer.transaction.timeout.ms", 10_000);
        var builder = new StreamsBuilder();
        KStream<String, String> input =
                builder.stream(arguments[2], Consumed.with(Serdes.String(), Serdes.String()));
        input.selectKey((key, value) -> key)
                .groupByKey(Grouped.with("by-key", Serdes.String(), Serdes.String()))
                .count(Materialized.as("counts"))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(arguments[3], Produced.with(Serdes.String(), Serdes.String()));
        var streams = new KafkaStreams(builder.build(), settings);
        var ended = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                System.out.println("ready");
            } else if (now == KafkaStreams.State.ERROR || now == KafkaStreams.State.NOT_RUNNING) {
                ended.countDown();
            }
        });
        streams.start();
        ended.await();
        System.exit(1);
    }
}
