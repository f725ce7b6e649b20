import java.io.IOException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;

/** A running group moves from the classic protocol to that of KIP-848 and back, one consumer at a time. */
final class Migration {
    private static final int PARTITIONS = 6;
    private static final int CONSUMERS = 3;
    private static final int RECORDS = 60;
    private static final Object[] CONSUMER = {"group.protocol", "consumer"};
    private final Broker broker;

    Migration(Broker broker) {
        this.broker = broker;
    }

    /** Add the checks, but not for 3.9: consumers of its protocol in preview may read a partition again (KAFKA-17674). */
    void addTo(Conformance checks) throws IOException {
        if (Conformance.version().startsWith("3.")) {
            return;
        }
        for (String assignor : List.of("RangeAssignor", "CooperativeStickyAssignor")) {
            checks.add("group: it moves to the consumer protocol and back, " + assignor, () -> new Moving(assignor).run());
        }
    }

    /** One group while it moves: who owns which partition, what was read, and what could not be committed. */
    private final class Moving {
        private final Object[] classic;
        private final String group = broker.newName("group");
        private final String topic;
        private final Map<Integer, Reader> owners = new HashMap<>();
        private final Map<String, Integer> read = new ConcurrentHashMap<>();
        private final Set<String> uncommitted = ConcurrentHashMap.newKeySet();
        private final List<String> faults = new CopyOnWriteArrayList<>();
        private final Queue<Reader> readers = new ArrayDeque<>();
        private int produced;

        Moving(String assignor) throws Exception {
            classic = new Object[] {
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor, "heartbeat.interval.ms", 300
            };
            topic = broker.newTopic(PARTITIONS);
        }

        void run() throws Exception {
            try (var admin = broker.admin()) {
                for (int number = 0; number < CONSUMERS; number++) {
                    readers.add(new Reader(classic));
                }
                settle(admin, GroupType.CLASSIC);
                for (int number = 0; number < CONSUMERS; number++) {
                    replace(admin, CONSUMER, GroupType.CONSUMER);
                }
                for (int number = 1; number <= CONSUMERS; number++) {
                    replace(admin, classic, number == CONSUMERS ? GroupType.CLASSIC : GroupType.CONSUMER);
                }
            } finally {
                readers.forEach(Reader::close);
            }
            Expect.equal(List.of(), faults);
            var again = new HashSet<String>();
            read.forEach((value, times) -> {
                if (times > 1) {
                    again.add(value);
                }
            });
            again.removeAll(uncommitted);
            Expect.equal(Set.of(), again);
        }

        /** Have another consumer take the place of the oldest one, while records arrive. */
        private void replace(Admin admin, Object[] settings, GroupType type) throws Exception {
            readers.remove().close();
            produce();
            readers.add(new Reader(settings));
            settle(admin, type);
        }

        private void settle(Admin admin, GroupType type) throws Exception {
            Expect.eventually("the group is " + type, () -> isSettled(admin, type));
            produce();
        }

        private boolean isSettled(Admin admin, GroupType type) {
            try {
                var found = admin.describeConsumerGroups(List.of(group)).describedGroups().get(group).get();
                synchronized (owners) {
                    return found.type() == type && found.members().size() == CONSUMERS && owners.size() == PARTITIONS;
                }
            } catch (Exception error) {
                return false;
            }
        }

        private void produce() throws Exception {
            broker.produceNumbers(topic, PARTITIONS, produced, produced + RECORDS);
            produced += RECORDS;
            Expect.eventually(produced + " records are read", () -> read.size() == produced);
        }

        /** A consumer on a thread of its own, which commits what it has read. */
        private final class Reader implements ConsumerRebalanceListener {
            private final KafkaConsumer<String, String> consumer;
            private final Thread thread = new Thread(this::work, "reader");
            private volatile boolean closing;

            Reader(Object[] settings) {
                var all = new ArrayList<>(List.of(settings));
                all.addAll(List.of("group.id", group, "max.poll.records", 5));
                consumer = broker.textConsumer(all.toArray());
                thread.start();
            }

            private void work() {
                try (consumer) {
                    consumer.subscribe(List.of(topic), this);
                    while (!closing) {
                        readSome();
                    }
                } catch (Exception error) {
                    faults.add(error.toString());
                }
            }

            private void readSome() {
                var values = new HashSet<String>();
                consumer.poll(Duration.ofMillis(100)).forEach(record -> values.add(record.value()));
                values.forEach(value -> read.merge(value, 1, Integer::sum));
                try {
                    consumer.commitSync();
                } catch (CommitFailedException | RebalanceInProgressException refused) {
                    uncommitted.addAll(values);
                }
            }

            void close() {
                closing = true;
                try {
                    thread.join(15_000);
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                }
                Expect.that(!thread.isAlive(), "a consumer did not close within 15 s");
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
                synchronized (owners) {
                    for (var each : assigned) {
                        if (owners.putIfAbsent(each.partition(), this) != null) {
                            faults.add("partition " + each.partition() + " has two owners");
                        }
                    }
                }
            }

            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                synchronized (owners) {
                    revoked.forEach(each -> owners.remove(each.partition(), this));
                }
            }
        }
    }
}
