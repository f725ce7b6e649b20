import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;

/** Producers: every codec and kind of acks, idempotent ones, odd records, and what must be refused. */
final class Producing {
    private final Broker broker;

    Producing(Broker broker) {
        this.broker = broker;
    }

    void addTo(Conformance checks) {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            checks.add("produce: unusual records are consumed unchanged, " + codec, () -> oddRecords(codec));
        }
        for (String acks : List.of("0", "1", "all")) {
            checks.add("produce: acks=" + acks, () -> acknowledged(acks));
        }
        checks.add("produce: idempotent batches in flight are stored once and in order", this::idempotent);
        checks.add("produce: a record of 900 kB", this::large);
        checks.add("produce: a too large record is refused and the next one accepted", this::tooLarge);
        checks.add("produce: timestamps of the producer are consumed unchanged", this::createTime);
        checks.add("produce: LogAppendTime replaces timestamps", this::logAppendTime);
        checks.add("produce: a timestamp of tomorrow is refused if the topic limits timestamps", this::timestampOutOfRange);
        checks.add("produce: an invalid topic name is refused", this::invalidTopic);
        checks.add("produce: an unknown topic is created by its first record", this::autoCreated);
    }

    private void oddRecords(String codec) throws Exception {
        String topic = broker.newTopic(1);
        var wanted = new ArrayList<ProducerRecord<byte[], byte[]>>();
        wanted.add(record(topic, "key", "value"));
        wanted.add(record(topic, null, "no key"));
        wanted.add(record(topic, "no value", null));
        wanted.add(record(topic, null, null));
        wanted.add(record(topic, "", ""));
        wanted.add(record(topic, "headers", "three", new RecordHeader("a", bytes("1")), new RecordHeader("a", bytes("")),
                new RecordHeader("nothing", (byte[]) null)));
        wanted.add(record(topic, "ключ", "värde ✓"));
        wanted.add(new ProducerRecord<>(topic, 0, bytes("bytes"), new byte[] {0, -1, 13, 10, 127, -128}));
        for (int i = 0; i < 500; i++) {
            wanted.add(record(topic, "key-" + i % 7, "value value value " + i));
        }
        var sent = new ArrayList<Future<RecordMetadata>>();
        try (var producer = broker.producer("compression.type", codec, "linger.ms", 20)) {
            wanted.forEach(record -> sent.add(producer.send(record)));
        }

        var got = broker.readAll(topic, wanted.size());
        for (int i = 0; i < wanted.size(); i++) {
            Expect.equal(shown(wanted.get(i)), shown(got.get(i)));
            Expect.equal(sent.get(i).get().offset(), got.get(i).offset());
        }
    }

    private void acknowledged(String acks) throws Exception {
        String topic = broker.newTopic(1);
        RecordMetadata last = null;
        try (var producer = broker.producer("acks", acks, "enable.idempotence", false)) {
            for (int i = 0; i < 100; i++) {
                last = producer.send(record(topic, "key", "value " + i)).get();
            }
        }

        Expect.equal(acks.equals("0"), last.offset() == -1);
        var got = broker.readAll(topic, 100);
        Expect.equal("value 99", text(got.get(99).value()));
    }

    private void idempotent() throws Exception {
        String topic = broker.newTopic(3);
        var sent = new ArrayList<Future<RecordMetadata>>();
        try (var producer = broker.producer("batch.size", 500, "max.in.flight.requests.per.connection", 5)) {
            for (int i = 0; i < 6_000; i++) {
                sent.add(producer.send(new ProducerRecord<>(topic, i % 3, null, bytes(Integer.toString(i)))));
            }
        }

        var next = new int[] {0, 1, 2};
        for (var record : broker.readAll(topic, 6_000)) {
            Expect.equal(Integer.toString(next[record.partition()]), text(record.value()));
            Expect.equal(sent.get(next[record.partition()]).get().offset(), record.offset());
            next[record.partition()] += 3;
        }
    }

    private void large() throws Exception {
        String topic = broker.newTopic(1);
        var value = new byte[900_000];
        new Random(7).nextBytes(value);
        try (var producer = broker.producer()) {
            producer.send(new ProducerRecord<>(topic, bytes("before"), bytes("small")));
            producer.send(new ProducerRecord<>(topic, bytes("large"), value)).get();
        }

        Expect.that(Arrays.equals(value, broker.readAll(topic, 2, "max.partition.fetch.bytes", 1_000).get(1).value()),
                "900,000 bytes came back changed");
    }

    private void tooLarge() throws Exception {
        String topic = broker.newTopic(1);
        try (var producer = broker.producer("max.request.size", 5_000_000, "batch.size", 1)) {
            Expect.error(RecordTooLargeException.class,
                    () -> producer.send(new ProducerRecord<>(topic, new byte[1_200_000])).get());
            producer.send(record(topic, "next", "taken")).get();
        }

        Expect.equal("taken", text(broker.readAll(topic, 1).get(0).value()));
    }

    private void createTime() throws Exception {
        String topic = broker.newTopic(1);
        long now = System.currentTimeMillis();
        var times = List.of(now, now - 86_400_000L, 0L, now - 1);
        try (var producer = broker.producer()) {
            for (long time : times) {
                producer.send(new ProducerRecord<>(topic, 0, time, bytes("key"), bytes("value")));
            }
        }

        var got = broker.readAll(topic, 4);
        Expect.equal(times, got.stream().map(ConsumerRecord::timestamp).toList());
        Expect.equal(TimestampType.CREATE_TIME, got.get(0).timestampType());
    }

    private void logAppendTime() throws Exception {
        String topic = broker.newTopic(1, "message.timestamp.type", "LogAppendTime");
        long before = System.currentTimeMillis();
        long told;
        try (var producer = broker.producer()) {
            told = producer.send(new ProducerRecord<>(topic, 0, 1_000L, bytes("key"), bytes("value"))).get().timestamp();
        }

        var got = broker.readAll(topic, 1).get(0);
        Expect.equal(told, got.timestamp());
        Expect.equal(TimestampType.LOG_APPEND_TIME, got.timestampType());
        Expect.that(Math.abs(got.timestamp() - before) < 60_000, "appended at " + got.timestamp());
    }

    private void timestampOutOfRange() throws Exception {
        String topic = broker.newTopic(1, "message.timestamp.after.max.ms", "3600000");
        long tomorrow = System.currentTimeMillis() + 86_400_000L;
        try (var producer = broker.producer()) {
            Expect.error(InvalidTimestampException.class,
                    () -> producer.send(new ProducerRecord<>(topic, 0, tomorrow, bytes("key"), bytes("value"))).get());
        }
    }

    private void invalidTopic() throws Exception {
        try (var producer = broker.producer("max.block.ms", 10_000)) {
            Expect.error(InvalidTopicException.class, () -> producer.send(record("no/topic", "key", "value")).get());
        }
    }

    private void autoCreated() throws Exception {
        String topic = broker.newName("created");
        try (var producer = broker.producer()) {
            producer.send(record(topic, "key", "first")).get();
        }

        Expect.equal("first", text(broker.readAll(topic, 1).get(0).value()));
    }

    private static ProducerRecord<byte[], byte[]> record(String topic, String key, String value, Header... headers) {
        return new ProducerRecord<>(topic, 0, bytes(key), bytes(value), Arrays.asList(headers));
    }

    private static String shown(ProducerRecord<byte[], byte[]> record) {
        return shown(record.key(), record.value(), record.headers());
    }

    private static String shown(ConsumerRecord<byte[], byte[]> record) {
        return shown(record.key(), record.value(), record.headers());
    }

    private static String shown(byte[] key, byte[] value, Iterable<Header> headers) {
        var text = new StringBuilder(Arrays.toString(key) + Arrays.toString(value));
        headers.forEach(header -> text.append(header.key()).append(Arrays.toString(header.value())));
        return text.toString();
    }

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
