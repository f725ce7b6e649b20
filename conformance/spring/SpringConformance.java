import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.springframework.kafka.core.DefaultShareConsumerFactory;
import org.springframework.kafka.listener.AcknowledgingShareConsumerAwareMessageListener;
import org.springframework.kafka.listener.ContainerProperties;
import org.springframework.kafka.listener.ShareKafkaMessageListenerContainer;
import org.springframework.kafka.support.ShareAcknowledgment;

/** Spring's listener containers for share groups. Arguments and output are those of {@link Conformance}. */
public final class SpringConformance {
    private static final int RECORDS = 100;

    /** What a listener does with a record. */
    interface Work {
        void on(ConsumerRecord<String, String> record, ShareAcknowledgment acknowledgment);
    }

    private final Broker broker;

    private SpringConformance(Broker broker) {
        this.broker = broker;
    }

    public static void main(String[] arguments) throws IOException {
        var spring = new SpringConformance(new Broker(arguments[0], arguments[1].equals("kafka")));
        var checks = new Conformance();
        checks.add("Spring: three consumers of a listener share a partition", spring::shared);
        checks.add("Spring: a listener that fails rejects its record", spring::failing);
        checks.add("Spring: a listener accepts, releases, rejects and renews", spring::acknowledging);
        checks.runAndExit(arguments);
    }

    private void shared() throws Exception {
        var once = deliveries(ContainerProperties.ShareAckMode.IMPLICIT, RECORDS, (record, acknowledgment) -> {});
        Expect.that(once.values().stream().allMatch(List.of(1)::equals), "deliveries " + once);
    }

    private void failing() throws Exception {
        var once = deliveries(ContainerProperties.ShareAckMode.EXPLICIT, RECORDS, (record, acknowledgment) -> {
            if (record.value().endsWith("7")) {
                throw new IllegalStateException("this record cannot be handled");
            }
        });
        Expect.that(once.values().stream().allMatch(List.of(1)::equals), "deliveries " + once);
    }

    private void acknowledging() throws Exception {
        int released = RECORDS / 10;
        var found = deliveries(ContainerProperties.ShareAckMode.MANUAL, RECORDS + released, (record, acknowledgment) -> {
            if (record.value().endsWith("1") && record.deliveryCount().orElseThrow() == 1) {
                acknowledgment.release();
            } else if (record.value().endsWith("2")) {
                acknowledgment.reject();
            } else {
                if (record.value().endsWith("3")) {
                    acknowledgment.renew();
                }
                acknowledgment.acknowledge();
            }
        });
        found.forEach((value, counts) -> Expect.equal(value.endsWith("1") ? List.of(1, 2) : List.of(1), counts));
    }

    /** Run a listener until so many deliveries have come, and its group has no record left. The counts by value. */
    private Map<String, List<Integer>> deliveries(ContainerProperties.ShareAckMode mode, int count, Work work)
            throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, RECORDS);
        var found = new ConcurrentHashMap<String, List<Integer>>();
        AcknowledgingShareConsumerAwareMessageListener<String, String> listener = (record, acknowledgment, consumer) -> {
            found.computeIfAbsent(record.value(), value -> Collections.synchronizedList(new ArrayList<>()))
                    .add(record.deliveryCount().orElseThrow().intValue());
            work.on(record, acknowledgment);
        };
        var properties = new ContainerProperties(topic);
        properties.setGroupId(group);
        properties.setShareAckMode(mode);
        properties.setMessageListener(listener);
        var factory = new DefaultShareConsumerFactory<String, String>(
                broker.settings(), new StringDeserializer(), new StringDeserializer(), true);
        var container = new ShareKafkaMessageListenerContainer<String, String>(factory, properties);
        container.setConcurrency(3);
        container.start();
        try (var admin = broker.admin()) {
            Expect.eventually(count + " deliveries", () -> found.values().stream().mapToInt(List::size).sum() >= count);
            Expect.eventually("no record left", () -> Administration.unchecked(() ->
                    ShareAdministration.lag(admin, group, topic).equals(Optional.of(0L))));
        } finally {
            container.stop();
        }
        Expect.equal(RECORDS, found.size());
        return found;
    }
}
