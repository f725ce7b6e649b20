import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.NoOffsetForPartitionException;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;

/** Consumers: where they start, how they are bounded, what they are told about offsets. */
final class Consuming {
    private final Broker broker;

    Consuming(Broker broker) {
        this.broker = broker;
    }

    void addTo(Conformance checks) {
        checks.add("consume: from the start, also read_committed", this::fromStart);
        checks.add("consume: from an offset in the middle of a batch", this::fromOffset);
        checks.add("consume: from a time", this::fromTime);
        checks.add("consume: from the end", this::fromEnd);
        checks.add("consume: beginning and end offsets", this::bounds);
        checks.add("consume: auto.offset.reset=none fails without a committed offset", this::noReset);
        checks.add("consume: beyond the end is out of range, a reset goes to the start", this::outOfRange);
        checks.add("consume: max.poll.records, pause and resume", this::pausedAndBounded);
        checks.add("consume: small fetches of large batches from many partitions", this::smallFetches);
        checks.add("consume: waiting at an empty partition ends with a record", this::woken);
        checks.add("consume: topics by a pattern, also one created later", this::byPattern);
        checks.add("consume: commit with metadata, and resume", this::commitAndResume);
        checks.add("consume: auto-commit, and resume", this::autoCommit);
        checks.add("consume: lag falls to 0", this::lag);
    }

    private void fromStart() throws Exception {
        String topic = broker.newTopic(1);
        broker.produceNumbers(topic, 1, 0, 300);

        for (String isolation : List.of("read_uncommitted", "read_committed")) {
            var got = broker.readAll(topic, 300, "isolation.level", isolation);
            for (int i = 0; i < 300; i++) {
                Expect.equal(Integer.toString(i), Producing.text(got.get(i).value()));
            }
        }
    }

    private void fromOffset() throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        long middle = -1;
        try (var producer = broker.textProducer("linger.ms", 200)) {
            var sent = new ArrayList<Future<RecordMetadata>>();
            for (int i = 0; i < 100; i++) {
                sent.add(producer.send(new ProducerRecord<>(partition.topic(), Integer.toString(i))));
            }
            middle = sent.get(57).get().offset();
        }

        try (var consumer = broker.textConsumer()) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, middle);
            var got = Broker.poll(consumer, 43);
            Expect.equal(middle, got.get(0).offset());
            Expect.equal("57", got.get(0).value());
            Expect.equal("99", got.get(42).value());
        }
    }

    private void fromTime() throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        long base = System.currentTimeMillis() - 1_000_000;
        try (var producer = broker.textProducer()) {
            for (int i = 0; i < 100; i++) {
                producer.send(new ProducerRecord<>(partition.topic(), 0, base + i * 1_000L, null, Integer.toString(i)));
            }
        }

        try (var consumer = broker.textConsumer()) {
            var found = consumer.offsetsForTimes(Map.of(partition, base + 41_500)).get(partition);
            Expect.equal(base + 42_000, found.timestamp());
            consumer.assign(List.of(partition));
            consumer.seek(partition, found.offset());
            Expect.equal("42", Broker.poll(consumer, 1).get(0).value());
            Expect.equal(base, consumer.offsetsForTimes(Map.of(partition, 0L)).get(partition).timestamp());
            Expect.equal(null, consumer.offsetsForTimes(Map.of(partition, base + 100_000)).get(partition));
        }
    }

    private void fromEnd() throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        broker.produceNumbers(partition.topic(), 1, 0, 10);
        try (var consumer = broker.textConsumer("auto.offset.reset", "latest")) {
            consumer.assign(List.of(partition));
            consumer.position(partition);
            broker.produceNumbers(partition.topic(), 1, 10, 11);
            Expect.equal(List.of("10"), Broker.values(Broker.poll(consumer, 1)));
        }
    }

    private void bounds() throws Exception {
        String topic = broker.newTopic(2);
        var written = new TopicPartition(topic, 0);
        var empty = new TopicPartition(topic, 1);
        var sent = broker.produceNumbers(topic, 1, 0, 10);
        try (var consumer = broker.textConsumer()) {
            var start = consumer.beginningOffsets(Set.of(written, empty));
            var end = consumer.endOffsets(Set.of(written, empty));
            // Offsets that follow the clock begin at the creation of the topic.
            boolean countsRecords = sent.get(0).offset() == 0;
            Expect.that(0 <= start.get(written) && start.get(written) <= sent.get(0).offset(), "it begins at " + start);
            Expect.equal(sent.get(9).offset() + 1, end.get(written));
            Expect.equal(countsRecords, start.get(empty) == 0);
            Expect.equal(start.get(empty), end.get(empty));
        }
    }

    private void noReset() throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        try (var consumer = broker.textConsumer("auto.offset.reset", "none", "group.id", broker.newName("group"))) {
            consumer.assign(List.of(partition));
            Expect.error(NoOffsetForPartitionException.class, () -> pollFor(consumer, 10));
        }
    }

    private void outOfRange() throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        var sent = broker.produceNumbers(partition.topic(), 1, 0, 10);
        long beyond = sent.get(9).offset() + 1_000_000_000;
        try (var consumer = broker.textConsumer("auto.offset.reset", "none")) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, beyond);
            Expect.error(OffsetOutOfRangeException.class, () -> pollFor(consumer, 10));
        }
        try (var consumer = broker.textConsumer()) {
            consumer.assign(List.of(partition));
            consumer.seek(partition, beyond);
            Expect.equal("0", Broker.poll(consumer, 10).get(0).value());
        }
    }

    private void pausedAndBounded() throws Exception {
        String topic = broker.newTopic(2);
        var paused = new TopicPartition(topic, 1);
        broker.produceNumbers(topic, 2, 0, 100);
        try (var consumer = broker.textConsumer("max.poll.records", 7)) {
            consumer.assign(List.of(new TopicPartition(topic, 0), paused));
            consumer.pause(List.of(paused));
            var got = new ArrayList<ConsumerRecord<String, String>>();
            Expect.eventually("50 of one partition", () -> {
                var records = consumer.poll(Duration.ofMillis(100));
                Expect.that(records.count() <= 7, records.count() + " records in one poll");
                Expect.that(records.records(paused).isEmpty(), "records of a paused partition");
                records.forEach(got::add);
                return got.size() == 50;
            });
            consumer.resume(List.of(paused));
            Expect.equal(1, Broker.poll(consumer, 50).get(0).partition());
        }
    }

    private void smallFetches() throws Exception {
        String topic = broker.newTopic(6);
        String padding = "x".repeat(2_000);
        try (var producer = broker.textProducer("linger.ms", 50, "batch.size", 100_000)) {
            for (int i = 0; i < 600; i++) {
                producer.send(new ProducerRecord<>(topic, i % 6, null, i + padding));
            }
        }

        var seen = new int[6];
        for (var record : broker.readAll(topic, 600, "max.partition.fetch.bytes", 1_000, "fetch.max.bytes", 10_000)) {
            Expect.equal(seen[record.partition()]++ * 6 + record.partition() + padding, Producing.text(record.value()));
        }
    }

    private void woken() throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        try (var consumer = broker.textConsumer("fetch.max.wait.ms", 6_000)) {
            consumer.assign(List.of(partition));
            consumer.poll(Duration.ofMillis(500));
            long start = System.nanoTime();
            broker.produceNumbers(partition.topic(), 1, 0, 1);
            Broker.poll(consumer, 1);
            Expect.that(System.nanoTime() - start < 3_000_000_000L, "a waiting fetch was not woken");
        }
    }

    private void byPattern() throws Exception {
        String prefix = broker.newName("pattern");
        try (var producer = broker.textProducer();
                var consumer = broker.textConsumer("group.id", prefix, "metadata.max.age.ms", 500)) {
            producer.send(new ProducerRecord<>(prefix + "-one", "1")).get();
            consumer.subscribe(Pattern.compile(prefix + "-.*"));
            Expect.equal(List.of("1"), Broker.values(Broker.poll(consumer, 1)));
            consumer.commitSync(); // the other topic comes with a rebalance
            producer.send(new ProducerRecord<>(prefix + "-two", "2")).get();
            Expect.equal(List.of("2"), Broker.values(Broker.poll(consumer, 1)));
        }
    }

    private void commitAndResume() throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        String group = broker.newName("group");
        var sent = broker.produceNumbers(partition.topic(), 1, 0, 20);
        var position = new OffsetAndMetadata(sent.get(11).offset() + 1, "twelve are done");
        try (var consumer = broker.textConsumer("group.id", group)) {
            consumer.subscribe(List.of(partition.topic()));
            Broker.poll(consumer, 20);
            consumer.commitSync(Map.of(partition, position));
        }

        try (var consumer = broker.textConsumer("group.id", group)) {
            var committed = consumer.committed(Set.of(partition)).get(partition);
            Expect.equal(position.offset(), committed.offset());
            Expect.equal(position.metadata(), committed.metadata());
            consumer.subscribe(List.of(partition.topic()));
            Expect.equal(List.of("12", "13", "14", "15", "16", "17", "18", "19"), Broker.values(Broker.poll(consumer, 8)));
        }
    }

    private void autoCommit() throws Exception {
        String topic = broker.newTopic(1);
        String group = broker.newName("group");
        broker.produceNumbers(topic, 1, 0, 20);
        for (int start = 0; start < 40; start += 20) {
            try (var consumer = broker.textConsumer("group.id", group, "enable.auto.commit", true)) {
                consumer.subscribe(List.of(topic));
                Expect.equal(Integer.toString(start), Broker.poll(consumer, 20).get(0).value());
            }
            broker.produceNumbers(topic, 1, start + 20, start + 40);
        }
    }

    private void lag() throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        broker.produceNumbers(partition.topic(), 1, 0, 50);
        try (var consumer = broker.textConsumer("max.poll.records", 10)) {
            consumer.assign(List.of(partition));
            Broker.poll(consumer, 10);
            long lag = consumer.currentLag(partition).getAsLong();
            Expect.that(lag >= 40, "a lag of " + lag + " after 10 of 50");
            Broker.poll(consumer, 40);
            Expect.equal(0L, consumer.currentLag(partition).getAsLong());
        }
    }

    private static void pollFor(KafkaConsumer<?, ?> consumer, int seconds) {
        long limit = System.nanoTime() + seconds * 1_000_000_000L;
        while (System.nanoTime() < limit) {
            consumer.poll(Duration.ofMillis(100));
        }
    }
}
