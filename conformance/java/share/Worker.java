import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.function.BooleanSupplier;
import java.util.function.Function;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A share consumer of a topic, with the deliveries of its records. */
final class Worker implements AutoCloseable {
    final KafkaShareConsumer<String, String> consumer;

    Worker(Broker broker, String topic, String group, Object... settings) {
        var all = new ArrayList<Object>(List.of(settings));
        all.addAll(List.of("group.id", group));
        consumer = new KafkaShareConsumer<>(
                broker.settings(all.toArray()), new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
    }

    /** A worker that acknowledges each record by itself. */
    static Worker explicit(Broker broker, String topic, String group) {
        return new Worker(broker, topic, group, "share.acknowledgement.mode", "explicit");
    }

    /** The name of a new group, which begins with the earliest records; settings as name, value, name, value. */
    static String newGroup(Broker broker, String... settings) throws ExecutionException, InterruptedException {
        String group = broker.newName("share");
        configure(broker, group, "share.auto.offset.reset", "earliest");
        for (int i = 0; i < settings.length; i += 2) {
            configure(broker, group, settings[i], settings[i + 1]);
        }
        return group;
    }

    static void configure(Broker broker, String group, String name, String value)
            throws ExecutionException, InterruptedException {
        var change = new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        try (var admin = broker.admin()) {
            admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        }
    }

    List<ConsumerRecord<String, String>> poll(int milliseconds) {
        var found = new ArrayList<ConsumerRecord<String, String>>();
        consumer.poll(Duration.ofMillis(milliseconds)).forEach(found::add);
        return found;
    }

    /** Poll until so many records have come. The polls acknowledge them, unless the worker is explicit. */
    List<ConsumerRecord<String, String>> take(int count) {
        var found = new ArrayList<ConsumerRecord<String, String>>();
        long limit = System.nanoTime() + 60_000_000_000L;
        while (found.size() < count) {
            Expect.that(System.nanoTime() < limit, "only " + found.size() + " of " + count + " records within 60 s");
            found.addAll(poll(100));
        }
        return found;
    }

    /** Poll, and acknowledge each record as `decide` says, until `isDone`. The deliveries as `value:count`. */
    List<String> work(Function<ConsumerRecord<String, String>, AcknowledgeType> decide, BooleanSupplier isDone) {
        var deliveries = new ArrayList<String>();
        long limit = System.nanoTime() + 60_000_000_000L;
        while (!isDone.getAsBoolean()) {
            Expect.that(System.nanoTime() < limit, "not done within 60 s: " + deliveries);
            for (var record : poll(100)) {
                deliveries.add(delivery(record));
                consumer.acknowledge(record, decide.apply(record));
            }
            commit();
        }
        return deliveries;
    }

    /** Commit the acknowledgements, none of which the broker refuses. */
    void commit() {
        consumer.commitSync().forEach((partition, error) -> error.ifPresent(found -> {
            throw new AssertionError("acknowledgements of " + partition + " are refused", found);
        }));
    }

    /** Commit the acknowledgements, which the broker refuses: the reason. */
    KafkaException refused() {
        for (var error : consumer.commitSync().values()) {
            if (error.isPresent()) {
                return error.get();
            }
        }
        throw new AssertionError("nothing is refused");
    }

    static String delivery(ConsumerRecord<String, String> record) {
        return record.value() + ":" + record.deliveryCount().map(String::valueOf).orElse("none");
    }

    static List<String> deliveries(List<ConsumerRecord<String, String>> records) {
        return records.stream().map(Worker::delivery).toList();
    }

    @Override
    public void close() {
        consumer.close(Duration.ofSeconds(15));
    }
}
