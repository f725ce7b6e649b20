import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.InvalidRecordStateException;
import org.apache.kafka.common.errors.RecordDeserializationException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** Share consumers: acknowledgements, locks, deliveries, and how they share the records of a partition. */
final class Sharing {
    private static final String LOCK = "share.record.lock.duration.ms";
    private static final String LIMIT = "share.delivery.count.limit";
    private final Broker broker;

    Sharing(Broker broker) {
        this.broker = broker;
    }

    void addTo(Conformance checks) {
        checks.add("share: polls acknowledge the records before them", this::implicit);
        checks.add("share: records are accepted, released and rejected", this::explicit);
        checks.add("share: a poll needs acknowledgements in explicit mode", this::unacknowledged);
        checks.add("share: a record that cannot be deserialized is rejected by its offset", this::undeserializable);
        checks.add("share: a released record comes again to another member", this::released);
        checks.add("share: a commit acknowledges in implicit mode", this::committedImplicitly);
        checks.add("share: close gives back what the last poll returned", this::closedImplicitly);
        checks.add("share: close gives back what is held in explicit mode", this::closedHolding);
        checks.add("share: the callback gets what was acknowledged", this::callback);
        checks.add("share: a lock that ends lets another member have the record", this::lockEnds);
        checks.add("share: a renewed lock stays with its member", this::renewed);
        checks.add("share: renewal may be disabled", this::renewalDisabled);
        checks.add("share: a poison record is archived at the limit", this::poison);
        checks.add("share: many members of one partition get each record once", this::manyMembers);
        checks.add("share: max.poll.records limits what a member holds", this::strictLimit);
        checks.add("share: keys, headers, nulls and compression", this::content);
        checks.add("share: read_committed passes over aborted records", this::isolation);
        checks.add("share: latest, earliest and by_duration", this::resets);
        checks.add("share: two groups have all records each", this::twoGroups);
        checks.add("share: subscription to several topics, changed and ended", this::subscriptions);
        checks.add("share: new partitions are delivered", this::newPartitions);
        checks.add("share: records of a deleted topic do not hold up others", this::deletedTopic);
    }

    private void implicit() throws Exception {
        String topic = broker.newTopic(2);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 2, 0, 20);
        try (var worker = new Worker(broker, topic, group)) {
            var found = Worker.deliveries(worker.take(20));
            Expect.equal(20, new HashSet<>(found).size());
            Expect.that(found.stream().allMatch(each -> each.endsWith(":1")), "delivered again: " + found);
            broker.produceNumbers(topic, 2, 20, 21);
            Expect.equal(List.of("20:1"), Worker.deliveries(worker.take(1)));
        }
    }

    private void explicit() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 3);
        try (var worker = Worker.explicit(broker, topic, group)) {
            var left = new HashSet<>(List.of("0", "1", "2"));
            var found = worker.work(record -> {
                boolean isReleased = record.value().equals("1") && record.deliveryCount().get() < 3;
                if (!isReleased) {
                    left.remove(record.value());
                }
                return isReleased ? AcknowledgeType.RELEASE
                        : record.value().equals("2") ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
            }, left::isEmpty);
            Expect.equal(List.of("0:1", "1:1", "1:2", "1:3", "2:1"), found.stream().sorted().toList());
            broker.produceNumbers(topic, 1, 3, 4);
            Expect.equal(List.of("3:1"), Worker.deliveries(worker.take(1)));
        }
    }

    private void unacknowledged() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 1);
        try (var worker = Worker.explicit(broker, topic, group)) {
            var record = worker.take(1).get(0);
            Expect.error(IllegalStateException.class, () -> worker.poll(100));
            worker.consumer.acknowledge(record, AcknowledgeType.RELEASE);
            Expect.equal(List.of("0:2"), Worker.deliveries(worker.take(1)));
        }
        try (var worker = new Worker(broker, topic, group)) {
            var record = worker.take(1).get(0);
            Expect.equal("0:3", Worker.delivery(record));
            Expect.error(IllegalStateException.class, () -> worker.consumer.acknowledge(record));
        }
    }

    private void undeserializable() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 2);
        Deserializer<String> picky = (name, data) -> {
            if (data[0] == '0') {
                throw new IllegalArgumentException("a zero");
            }
            return new String(data);
        };
        var settings = broker.settings("group.id", group, "share.acknowledgement.mode", "explicit");
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), picky)) {
            consumer.subscribe(List.of(topic));
            var found = new ArrayList<String>();
            Expect.eventually("both records", () -> {
                try {
                    for (var record : consumer.poll(Duration.ofMillis(100))) {
                        found.add(record.value());
                        consumer.acknowledge(record);
                    }
                } catch (RecordDeserializationException error) {
                    found.add("offset " + (error.offset() < 0 ? "missing" : "there"));
                    consumer.acknowledge(topic, 0, error.offset(), AcknowledgeType.REJECT);
                }
                return found.size() == 2;
            });
            Expect.equal(List.of("offset there", "1"), found);
            consumer.commitSync();
        }
        nothingLeft(topic, group);
    }

    private void released() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 1);
        try (var first = Worker.explicit(broker, topic, group); var second = Worker.explicit(broker, topic, group)) {
            var record = first.take(1).get(0);
            Expect.equal(List.of(), second.poll(1000));
            first.consumer.acknowledge(record, AcknowledgeType.RELEASE);
            first.commit();
            var again = second.take(1).get(0);
            Expect.equal("0:2", Worker.delivery(again));
            second.consumer.acknowledge(again);
            second.commit();
        }
        nothingLeft(topic, group);
    }

    private void committedImplicitly() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 3);
        try (var worker = new Worker(broker, topic, group)) {
            worker.take(3);
            worker.commit();
        }
        nothingLeft(topic, group);
    }

    private void closedImplicitly() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 1);
        try (var worker = new Worker(broker, topic, group)) {
            worker.take(1);
        }
        try (var worker = new Worker(broker, topic, group)) {
            Expect.equal(List.of("0:2"), Worker.deliveries(worker.take(1)));
        }
    }

    private void closedHolding() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 1);
        try (var worker = Worker.explicit(broker, topic, group)) {
            worker.take(1);
        }
        long start = System.nanoTime();
        try (var worker = Worker.explicit(broker, topic, group)) {
            Expect.equal(List.of("0:2"), Worker.deliveries(worker.take(1)));
        }
        Expect.that(System.nanoTime() - start < 25_000_000_000L, "it waited for the lock");
    }

    private void callback() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 3);
        var acknowledged = new ConcurrentHashMap<Long, Optional<Exception>>();
        try (var worker = Worker.explicit(broker, topic, group)) {
            worker.consumer.setAcknowledgementCommitCallback((offsets, error) -> offsets.values()
                    .forEach(each -> each.forEach(offset -> acknowledged.put(offset, Optional.ofNullable(error)))));
            var taken = new ArrayList<Long>();
            while (taken.size() < 3) {
                for (var record : worker.poll(100)) {
                    taken.add(record.offset());
                    worker.consumer.acknowledge(record);
                }
            }
            worker.consumer.commitAsync();
            Expect.eventually("the callback was called for all", () -> {
                worker.poll(100);
                return acknowledged.keySet().containsAll(taken);
            });
            Expect.that(acknowledged.values().stream().allMatch(Optional::isEmpty), "errors: " + acknowledged);
        }
    }

    private void lockEnds() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker, LOCK, "1000");
        broker.produceNumbers(topic, 1, 0, 1);
        try (var slow = Worker.explicit(broker, topic, group); var other = Worker.explicit(broker, topic, group)) {
            var record = slow.take(1).get(0);
            Expect.equal(Optional.of(1000), slow.consumer.acquisitionLockTimeoutMs());
            var again = other.take(1).get(0);
            Expect.equal("0:2", Worker.delivery(again));
            slow.consumer.acknowledge(record);
            Expect.that(slow.refused() instanceof InvalidRecordStateException, "not INVALID_RECORD_STATE");
            other.consumer.acknowledge(again);
            other.consumer.commitSync();
        }
    }

    private void renewed() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker, LOCK, "2000");
        broker.produceNumbers(topic, 1, 0, 1);
        try (var slow = Worker.explicit(broker, topic, group); var other = Worker.explicit(broker, topic, group)) {
            var record = slow.take(1).get(0);
            for (int round = 0; round < 8; round++) {
                slow.consumer.acknowledge(record, AcknowledgeType.RENEW);
                slow.commit();
                Expect.equal(List.of(), other.poll(500));
                Expect.equal(List.of("0:1"), Worker.deliveries(slow.take(1)));
            }
            slow.consumer.acknowledge(record, AcknowledgeType.ACCEPT);
            slow.commit();
        }
        nothingLeft(topic, group);
    }

    private void renewalDisabled() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker, "share.renew.acknowledge.enable", "false");
        broker.produceNumbers(topic, 1, 0, 1);
        try (var worker = Worker.explicit(broker, topic, group)) {
            var record = worker.take(1).get(0);
            worker.consumer.acknowledge(record, AcknowledgeType.RENEW);
            Expect.that(worker.refused() instanceof InvalidRecordStateException, "not INVALID_RECORD_STATE");
        }
    }

    private void poison() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker, LIMIT, "3");
        broker.produceNumbers(topic, 1, 0, 4);
        try (var worker = Worker.explicit(broker, topic, group)) {
            var good = new HashSet<String>();
            var found = new ArrayList<String>();
            found.addAll(worker.work(record -> {
                if (record.value().equals("0")) {
                    return AcknowledgeType.RELEASE;
                }
                good.add(record.value());
                return AcknowledgeType.ACCEPT;
            }, () -> good.size() == 3));
            broker.produceNumbers(topic, 1, 4, 5);
            var seen = new HashSet<String>();
            found.addAll(worker.work(record -> {
                seen.add(Worker.delivery(record));
                return record.value().equals("0") ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
            }, () -> seen.contains("4:1") && (seen.contains("0:3") || found.contains("0:3"))));
            Expect.equal(List.of("0:1", "0:2", "0:3"), found.stream().filter(each -> each.startsWith("0")).toList());
        }
        nothingLeft(topic, group);
    }

    private void manyMembers() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 1000);
        var found = new ConcurrentHashMap<String, Integer>();
        var pool = Executors.newFixedThreadPool(5);
        for (int i = 0; i < 5; i++) {
            pool.submit(() -> {
                try (var worker = new Worker(broker, topic, group, "max.poll.records", 20)) {
                    while (found.size() < 1000) {
                        worker.poll(100).forEach(record -> found.merge(record.value(), 1, Integer::sum));
                    }
                    worker.commit();
                }
            });
        }
        pool.shutdown();
        Expect.that(pool.awaitTermination(60, TimeUnit.SECONDS), "only " + found.size() + " records within 60 s");
        Expect.that(found.values().stream().allMatch(count -> count == 1), "delivered twice");
    }

    private void strictLimit() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        try (var producer = broker.textProducer("linger.ms", 100)) {
            for (int number = 0; number < 10; number++) {
                producer.send(new ProducerRecord<>(topic, Integer.toString(number)));
            }
        }
        Object[] strict = {"share.acknowledgement.mode", "explicit", "share.acquire.mode", "record_limit",
                "max.poll.records", 3};
        try (var first = new Worker(broker, topic, group, strict); var second = new Worker(broker, topic, group, strict)) {
            Expect.equal(List.of("0:1", "1:1", "2:1"), Worker.deliveries(first.take(1)));
            Expect.equal(List.of("3:1", "4:1", "5:1"), Worker.deliveries(second.take(1)));
        }
    }

    private void content() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        try (var producer = broker.textProducer("compression.type", "zstd", "linger.ms", 100)) {
            var header = new RecordHeader("trace", new byte[] {0, 1, (byte) 0xff});
            producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L, "key", "value", List.of(header)));
            producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_001L, null, null, List.of()));
        }
        try (var worker = new Worker(broker, topic, group)) {
            var found = worker.take(2);
            var first = found.get(0);
            Expect.equal("key=value@1700000000000", first.key() + "=" + first.value() + "@" + first.timestamp());
            Expect.equal((byte) 0xff, first.headers().lastHeader("trace").value()[2]);
            Expect.equal(null, found.get(1).key());
            Expect.equal(null, found.get(1).value());
        }
    }

    private void isolation() throws Exception {
        String topic = broker.newTopic(1);
        String committed = Worker.newGroup(broker, "share.isolation.level", "read_committed");
        String all = Worker.newGroup(broker);
        try (var producer = broker.textProducer("transactional.id", broker.newName("tx"))) {
            producer.initTransactions();
            for (int number = 0; number < 4; number++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, Integer.toString(number))).get();
                if (number % 2 == 0) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        try (var worker = new Worker(broker, topic, all)) {
            Expect.equal(List.of("0:1", "1:1", "2:1", "3:1"), Worker.deliveries(worker.take(4)));
        }
        try (var worker = new Worker(broker, topic, committed)) {
            Expect.equal(List.of("1:1", "3:1"), Worker.deliveries(worker.take(2)));
            worker.commit();
        }
        nothingLeft(topic, committed);
    }

    private void resets() throws Exception {
        String topic = broker.newTopic(1);
        broker.produceNumbers(topic, 1, 0, 3);
        String byDuration = Worker.newGroup(broker, "share.auto.offset.reset", "by_duration:PT1H");
        try (var worker = new Worker(broker, topic, byDuration)) {
            Expect.equal(List.of("0:1", "1:1", "2:1"), Worker.deliveries(worker.take(3)));
        }
        String latest = Worker.newGroup(broker, "share.auto.offset.reset", "latest");
        try (var worker = new Worker(broker, topic, latest)) {
            var found = new ArrayList<String>();
            for (int number = 3; found.isEmpty(); number++) {
                Expect.that(number < 500, "nothing is delivered");
                broker.produceNumbers(topic, 1, number, number + 1);
                found.addAll(Worker.deliveries(worker.poll(100)));
            }
            Expect.that(!List.of("0:1", "1:1", "2:1").contains(found.get(0)), "it did not begin at the end: " + found);
        }
    }

    private void twoGroups() throws Exception {
        String topic = broker.newTopic(2);
        broker.produceNumbers(topic, 2, 0, 10);
        for (int i = 0; i < 2; i++) {
            try (var worker = new Worker(broker, topic, Worker.newGroup(broker))) {
                Expect.equal(10, new HashSet<>(Worker.deliveries(worker.take(10))).size());
            }
        }
    }

    private void subscriptions() throws Exception {
        String one = broker.newTopic(1);
        String two = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(one, 1, 0, 1);
        try (var worker = new Worker(broker, one, group)) {
            worker.take(1);
            worker.consumer.subscribe(List.of(one, two));
            broker.produceNumbers(two, 1, 1, 2);
            Expect.equal(List.of("1:1"), Worker.deliveries(worker.take(1)));
            worker.consumer.unsubscribe();
            Expect.error(IllegalStateException.class, () -> worker.poll(100));
            worker.consumer.subscribe(List.of(two));
            broker.produceNumbers(two, 1, 2, 3);
            Expect.equal(List.of("2:1"), Worker.deliveries(worker.take(1)));
        }
    }

    private void newPartitions() throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        try (var worker = new Worker(broker, topic, group, "metadata.max.age.ms", 500); var admin = broker.admin()) {
            broker.produceNumbers(topic, 1, 0, 1);
            worker.take(1);
            var more = NewPartitions.increaseTo(3);
            admin.createPartitions(Map.of(topic, more)).all().get();
            broker.produceNumbers(topic, 3, 1, 7);
            Expect.equal(6, new HashSet<>(Worker.deliveries(worker.take(6))).size());
        }
    }

    private void deletedTopic() throws Exception {
        String gone = broker.newTopic(1);
        String stays = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        try (var worker = new Worker(broker, gone, group); var admin = broker.admin()) {
            worker.consumer.subscribe(List.of(gone, stays));
            broker.produceNumbers(gone, 1, 0, 1);
            worker.take(1);
            admin.deleteTopics(List.of(gone)).all().get();
            broker.produceNumbers(stays, 1, 1, 2);
            Expect.equal(List.of("1:1"), Worker.deliveries(worker.take(1)));
        }
    }

    /** Nothing of the group comes but what is produced now. */
    private void nothingLeft(String topic, String group) throws Exception {
        broker.produceNumbers(topic, 1, 1000, 1001);
        try (var worker = new Worker(broker, topic, group)) {
            Expect.equal(List.of("1000:1"), Worker.deliveries(worker.take(1)));
        }
    }
}
