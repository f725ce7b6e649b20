import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The broker under test: names nobody has used, and clients for it with limits that end a check in time. */
final class Broker {
    private final String bootstrap;
    private final String run = Long.toString(System.currentTimeMillis(), 36);
    private final AtomicInteger names = new AtomicInteger();

    /** Whether it is Apache Kafka, which also serves the groups of KIP-848. */
    final boolean isKafka;

    Broker(String bootstrap, boolean isKafka) {
        this.bootstrap = bootstrap;
        this.isKafka = isKafka;
    }

    String newName(String kind) {
        return kind + "-" + run + "-" + names.incrementAndGet();
    }

    /** A new topic that can be used; settings as name, value, name, value. */
    String newTopic(int partitions, String... settings) throws Exception {
        String topic = newName("topic");
        try (var admin = admin()) {
            var wanted = new NewTopic(topic, Optional.of(partitions), Optional.empty()).configs(strings(settings));
            admin.createTopics(List.of(wanted)).all().get();
            Expect.eventually("topic " + topic + " is known", () -> isKnown(admin, topic, partitions));
            // The metadata may name a leader that does not lead yet. Apache Kafka would refuse a producer's first batch and
            // accept its second one, and the producer would then be out of order until it gives up.
            var ends = new HashMap<TopicPartition, OffsetSpec>();
            for (int partition = 0; partition < partitions; partition++) {
                ends.put(new TopicPartition(topic, partition), OffsetSpec.latest());
            }
            admin.listOffsets(ends).all().get();
        }
        return topic;
    }

    private static boolean isKnown(Admin admin, String topic, int partitions) {
        try {
            var found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            return found.partitions().size() == partitions
                    && found.partitions().stream().allMatch(partition -> partition.leader() != null);
        } catch (Exception error) {
            return false;
        }
    }

    Admin admin() {
        return Admin.create(settings("request.timeout.ms", 30_000, "default.api.timeout.ms", 60_000));
    }

    KafkaProducer<byte[], byte[]> producer(Object... settings) {
        return new KafkaProducer<>(settings(settings), new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaProducer<String, String> textProducer(Object... settings) {
        return new KafkaProducer<>(settings(settings), new StringSerializer(), new StringSerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(Object... settings) {
        return new KafkaConsumer<>(reading(settings), new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    KafkaConsumer<String, String> textConsumer(Object... settings) {
        return new KafkaConsumer<>(reading(settings), new StringDeserializer(), new StringDeserializer());
    }

    /** Send the numbers from `start` to `end` as values, round the partitions, each batch by itself awaited. */
    List<RecordMetadata> produceNumbers(String topic, int partitions, int start, int end) throws Exception {
        var sent = new ArrayList<Future<RecordMetadata>>();
        try (var producer = textProducer("linger.ms", 0)) {
            for (int number = start; number < end; number++) {
                String text = Integer.toString(number);
                sent.add(producer.send(new ProducerRecord<>(topic, number % partitions, "key-" + text, text)));
            }
        }
        var metadata = new ArrayList<RecordMetadata>();
        for (var future : sent) {
            metadata.add(future.get());
        }
        return metadata;
    }

    /** Poll until so many records have come, 60 s at most; more are returned where a poll brought more. */
    static <K, V> List<ConsumerRecord<K, V>> poll(KafkaConsumer<K, V> consumer, int count) {
        var records = new ArrayList<ConsumerRecord<K, V>>();
        long limit = System.nanoTime() + 60_000_000_000L;
        while (records.size() < count) {
            Expect.that(System.nanoTime() < limit, "only " + records.size() + " of " + count + " records within 60 s");
            consumer.poll(Duration.ofMillis(100)).forEach(records::add);
        }
        return records;
    }

    /** Every record of the topic, which has so many, by a consumer that assigns itself all partitions. */
    List<ConsumerRecord<byte[], byte[]>> readAll(String topic, int count, Object... settings) {
        try (var consumer = consumer(settings)) {
            var partitions = new ArrayList<TopicPartition>();
            consumer.partitionsFor(topic).forEach(found -> partitions.add(new TopicPartition(topic, found.partition())));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var records = poll(consumer, count);
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
            Expect.equal(count, records.size());
            return records;
        }
    }

    static List<String> values(Collection<ConsumerRecord<String, String>> records) {
        return records.stream().map(ConsumerRecord::value).toList();
    }

    static Map<String, String> strings(String... pairs) {
        var map = new HashMap<String, String>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put(pairs[i], pairs[i + 1]);
        }
        return map;
    }

    private Map<String, Object> reading(Object... pairs) {
        var settings = settings(pairs);
        settings.putIfAbsent("enable.auto.commit", false);
        settings.putIfAbsent("auto.offset.reset", "earliest");
        return settings;
    }

    Map<String, Object> settings(Object... pairs) {
        var settings = new HashMap<String, Object>();
        settings.put("bootstrap.servers", bootstrap);
        for (int i = 0; i < pairs.length; i += 2) {
            settings.put((String) pairs[i], pairs[i + 1]);
        }
        return settings;
    }
}
