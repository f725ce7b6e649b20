import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Transactions: of one producer after the other, with the offsets of a group, and as administrators see them. */
final class Transactions {
    private static final String COMMITTED = "read_committed";
    private static final String UNCOMMITTED = "read_uncommitted";
    private final Broker broker;

    Transactions(Broker broker) {
        this.broker = broker;
    }

    void addTo(Conformance checks) {
        checks.add("transactions: records of committed ones are received, of aborted ones not", this::ends);
        checks.add("transactions: an open one holds back what follows", this::open);
        checks.add("transactions: one hundred in a row, over three partitions", this::many);
        checks.add("transactions: consume, transform and produce, with aborts", this::transform);
        checks.add("transactions: a second producer of the id fences the first", this::fences);
        checks.add("transactions: initialization aborts the open one of the producer before", this::takesOver);
        checks.add("transactions: a timeout aborts", this::timesOut);
        checks.add("transactions: are listed, described and aborted by administrators", this::administration);
    }

    private KafkaProducer<String, String> producer(String id, Object... settings) {
        var all = new ArrayList<Object>(List.of("transactional.id", id, "linger.ms", 0));
        all.addAll(List.of(settings));
        var producer = broker.textProducer(all.toArray());
        producer.initTransactions();
        return producer;
    }

    private static void send(KafkaProducer<String, String> producer, String topic, int partition, String... values)
            throws Exception {
        for (String value : values) {
            producer.send(new ProducerRecord<>(topic, partition, null, value)).get();
        }
    }

    /** The values of a partition up to the end that consumers see at that level. */
    private List<String> read(String topic, int partition, String level) {
        var tp = new TopicPartition(topic, partition);
        try (var consumer = broker.textConsumer("isolation.level", level)) {
            consumer.assign(List.of(tp));
            consumer.seekToBeginning(List.of(tp));
            long end = consumer.endOffsets(List.of(tp)).get(tp);
            var values = new ArrayList<String>();
            long limit = System.nanoTime() + 60_000_000_000L;
            while (consumer.position(tp) < end) {
                Expect.that(System.nanoTime() < limit, "only " + values.size() + " records within 60 s");
                consumer.poll(Duration.ofMillis(50)).forEach(record -> values.add(record.value()));
            }
            return values;
        }
    }

    /** Markers follow the answer to the commit. */
    private void expectCommitted(String topic, int partition, List<String> values) throws Exception {
        Expect.eventually("all transactions ended", () -> read(topic, partition, COMMITTED).size() >= values.size());
        Expect.equal(values, read(topic, partition, COMMITTED));
    }

    private void ends() throws Exception {
        String topic = broker.newTopic(1);
        try (var producer = producer(broker.newName("transactional"))) {
            producer.beginTransaction();
            send(producer, topic, 0, "a", "b");
            Expect.equal(List.of(), read(topic, 0, COMMITTED));
            Expect.equal(List.of("a", "b"), read(topic, 0, UNCOMMITTED));
            producer.commitTransaction();
            producer.beginTransaction();
            send(producer, topic, 0, "c");
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, topic, 0, "d");
            producer.commitTransaction();
            expectCommitted(topic, 0, List.of("a", "b", "d"));
            Expect.equal(List.of("a", "b", "c", "d"), read(topic, 0, UNCOMMITTED));
        }
    }

    private void open() throws Exception {
        String topic = broker.newTopic(1);
        try (var producer = producer(broker.newName("transactional"));
                var plain = broker.textProducer()) {
            send(plain, topic, 0, "before");
            producer.beginTransaction();
            send(producer, topic, 0, "a");
            send(plain, topic, 0, "after");
            Expect.equal(List.of("before"), read(topic, 0, COMMITTED));
            producer.abortTransaction();
            expectCommitted(topic, 0, List.of("before", "after"));
        }
    }

    private void many() throws Exception {
        String topic = broker.newTopic(3);
        try (var producer = producer(broker.newName("transactional"))) {
            for (int i = 0; i < 100; i++) {
                producer.beginTransaction();
                for (int partition = 0; partition < 3; partition++) {
                    producer.send(new ProducerRecord<>(topic, partition, null, Integer.toString(i)));
                }
                if (i % 4 == 3) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        var kept = IntStream.range(0, 100).filter(i -> i % 4 != 3).mapToObj(Integer::toString).toList();
        for (int partition = 0; partition < 3; partition++) {
            expectCommitted(topic, partition, kept);
        }
    }

    /** A member of a group whose offsets are in step with its output: every third transaction is aborted and repeated. */
    private void transform() throws Exception {
        String input = broker.newTopic(2);
        String output = broker.newTopic(1);
        String group = broker.newName("group");
        broker.produceNumbers(input, 2, 0, 100);
        try (var consumer = broker.textConsumer("group.id", group, "isolation.level", COMMITTED, "max.poll.records", 10);
                var producer = producer(broker.newName("transactional"))) {
            consumer.subscribe(List.of(input));
            int transactions = 0;
            long limit = System.nanoTime() + 60_000_000_000L;
            while (read(output, 0, COMMITTED).size() < 100) {
                Expect.that(System.nanoTime() < limit, "not all was transformed within 60 s");
                var records = consumer.poll(Duration.ofMillis(100));
                if (records.isEmpty()) {
                    continue;
                }
                var offsets = new HashMap<TopicPartition, OffsetAndMetadata>();
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : records) {
                    producer.send(new ProducerRecord<>(output, 0, null, record.value()));
                    offsets.put(new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (transactions++ % 3 == 1) {
                    producer.abortTransaction();
                    rewind(consumer);
                } else {
                    producer.commitTransaction();
                }
            }
            var ends = consumer.endOffsets(consumer.assignment());
            var committed = consumer.committed(consumer.assignment());
            ends.forEach((tp, end) -> Expect.equal(end, committed.get(tp).offset()));
        }
        var values = read(output, 0, COMMITTED);
        Expect.equal(100, values.size());
        Expect.equal(100, new HashSet<>(values).size());
    }

    private static void rewind(KafkaConsumer<String, String> consumer) {
        Set<TopicPartition> assigned = consumer.assignment();
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(assigned);
        for (TopicPartition tp : assigned) {
            var offset = committed.get(tp);
            if (offset == null) {
                consumer.seekToBeginning(List.of(tp));
            } else {
                consumer.seek(tp, offset.offset());
            }
        }
    }

    private void fences() throws Exception {
        String topic = broker.newTopic(1);
        String id = broker.newName("transactional");
        try (var first = producer(id)) {
            first.beginTransaction();
            send(first, topic, 0, "fenced");
            try (var second = producer(id)) {
                second.beginTransaction();
                send(second, topic, 0, "kept");
                var error = Expect.error(KafkaException.class, first::commitTransaction);
                Expect.that(isFencing(error), "not fenced: " + error);
                second.commitTransaction();
            }
        }
        expectCommitted(topic, 0, List.of("kept"));
    }

    private static boolean isFencing(Throwable error) {
        return error instanceof ProducerFencedException || error instanceof InvalidProducerEpochException
                || error.getCause() != null && isFencing(error.getCause());
    }

    private void takesOver() throws Exception {
        String topic = broker.newTopic(1);
        String id = broker.newName("transactional");
        var lost = producer(id);
        lost.beginTransaction();
        send(lost, topic, 0, "lost");
        lost.close(Duration.ZERO);
        try (var next = producer(id)) {
            next.beginTransaction();
            send(next, topic, 0, "kept");
            next.commitTransaction();
        }
        expectCommitted(topic, 0, List.of("kept"));
    }

    private void timesOut() throws Exception {
        String topic = broker.newTopic(1);
        try (var producer = producer(broker.newName("transactional"), "transaction.timeout.ms", 1000);
                var plain = broker.textProducer()) {
            producer.beginTransaction();
            send(producer, topic, 0, "late");
            send(plain, topic, 0, "after");
            expectCommitted(topic, 0, List.of("after"));
            Expect.error(KafkaException.class, producer::commitTransaction);
        }
    }

    private void administration() throws Exception {
        String topic = broker.newTopic(2);
        String id = broker.newName("transactional");
        try (var admin = broker.admin(); var producer = producer(id)) {
            producer.beginTransaction();
            long first = producer.send(new ProducerRecord<>(topic, 1, null, "a")).get().offset();
            var listed = admin.listTransactions().all().get().stream()
                    .filter(each -> each.transactionalId().equals(id)).toList();
            Expect.equal(1, listed.size());
            Expect.equal(TransactionState.ONGOING, listed.get(0).state());
            var described = admin.describeTransactions(List.of(id)).description(id).get();
            Expect.equal(Set.of(new TopicPartition(topic, 1)), described.topicPartitions());
            Expect.equal(listed.get(0).producerId(), described.producerId());
            var tp = new TopicPartition(topic, 1);
            var state = admin.describeProducers(List.of(tp)).partitionResult(tp).get().activeProducers().get(0);
            Expect.equal(described.producerId(), state.producerId());
            Expect.equal(first, state.currentTransactionStartOffset().getAsLong());
            admin.abortTransaction(
                    new AbortTransactionSpec(tp, state.producerId(), (short) state.producerEpoch(), 0)).all().get();
            Expect.equal(List.of(), read(topic, 1, COMMITTED));
            Expect.equal(List.of("a"), read(topic, 1, UNCOMMITTED));
            var ended = admin.describeProducers(List.of(tp)).partitionResult(tp).get().activeProducers();
            Expect.that(ended.stream().allMatch(each -> each.currentTransactionStartOffset().isEmpty()), "still open");
        }
    }
}
