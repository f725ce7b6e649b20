import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.WakeupException;

/** A consumer of a group on a thread of its own, which polls, and commits what it got, until it is closed. */
final class Member implements AutoCloseable {
    /** What the listener was told, in order: `assigned 0 1`, `revoked 1`, `lost 0`. */
    final List<String> events = new CopyOnWriteArrayList<>();

    /** The partitions it may read now. */
    final Set<Integer> partitions = new ConcurrentSkipListSet<>();

    final List<String> values = new CopyOnWriteArrayList<>();
    volatile ConsumerGroupMetadata metadata;
    volatile Throwable error;
    private final KafkaConsumer<String, String> consumer;
    private final Thread thread;
    private volatile boolean closing;

    Member(Broker broker, String topic, String group, Object... settings) {
        var all = new ArrayList<Object>(List.of(settings));
        all.addAll(List.of("group.id", group));
        consumer = broker.textConsumer(all.toArray());
        thread = new Thread(() -> work(topic), "member");
        thread.start();
    }

    private void work(String topic) {
        try (consumer) {
            consumer.subscribe(List.of(topic), new Listener());
            while (!closing) {
                var records = consumer.poll(Duration.ofMillis(100));
                records.forEach(record -> values.add(record.value()));
                if (!records.isEmpty()) {
                    consumer.commitSync();
                }
                metadata = consumer.groupMetadata();
            }
        } catch (WakeupException woken) {
            error = closing ? null : woken;
        } catch (Throwable fault) {
            error = fault;
        } finally {
            partitions.clear();
        }
    }

    int count() {
        return partitions.size();
    }

    boolean isSettled() {
        return metadata != null && metadata.generationId() > 0 && count() > 0;
    }

    /** Leave, commit nothing more, and return when the consumer is closed. */
    @Override
    public void close() {
        closing = true;
        consumer.wakeup();
        try {
            thread.join(15_000);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
        Expect.that(!thread.isAlive(), "a consumer did not close within 15 s");
    }

    private final class Listener implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> assigned) {
            partitions.addAll(note("assigned", assigned));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
            partitions.removeAll(note("revoked", revoked));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> lost) {
            partitions.removeAll(note("lost", lost));
        }

        private Set<Integer> note(String what, Collection<TopicPartition> touched) {
            var numbers = new TreeSet<Integer>();
            touched.forEach(partition -> numbers.add(partition.partition()));
            var words = new StringBuilder(what);
            numbers.forEach(number -> words.append(' ').append(number));
            events.add(words.toString());
            return numbers;
        }
    }
}
