import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.SharePartitionOffsetInfo;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** The admin client on share groups, their offsets and settings. */
final class ShareAdministration {
    private final Broker broker;

    ShareAdministration(Broker broker) {
        this.broker = broker;
    }

    void addTo(Conformance checks) {
        add(checks, "list by type and state, and describe with members", this::described);
        add(checks, "start offsets and lag", this::offsets);
        add(checks, "alter offsets, and deliver from there", this::altered);
        add(checks, "alter offsets of a group that does not exist", this::created);
        add(checks, "delete offsets, and begin again", this::forgotten);
        add(checks, "a group with members is not altered or deleted", this::refused);
        add(checks, "delete groups with individual errors", this::deleted);
        add(checks, "a group of another type is not found", this::otherType);
        add(checks, "settings of a group", this::settings);
    }

    private void add(Conformance checks, String name, Administration.Task task) {
        checks.add("admin of share groups: " + name, () -> {
            try (var admin = broker.admin()) {
                task.run(admin);
            }
        });
    }

    private void described(Admin admin) throws Exception {
        String topic = broker.newTopic(3);
        String group = Worker.newGroup(broker);
        try (var worker = new Worker(broker, topic, group, "client.id", "one")) {
            Expect.eventually("it has its partitions", () -> {
                worker.poll(100);
                return Administration.unchecked(() -> assigned(admin, group)) == 3;
            });
            var found = admin.describeShareGroups(List.of(group)).all().get().get(group);
            Expect.equal(GroupState.STABLE, found.groupState());
            Expect.equal(found.groupEpoch(), found.targetAssignmentEpoch());
            var member = found.members().iterator().next();
            Expect.equal("one", member.clientId());
            Expect.equal(found.groupEpoch(), member.memberEpoch());
            Expect.that(member.host().contains("127.0.0.1"), "host " + member.host());
            Expect.that(listed(admin, "STABLE").contains(group), "it is not among the stable ones");
            Expect.that(!listed(admin, "EMPTY").contains(group), "it is among the empty ones");
        }
        Expect.that(listed(admin, "EMPTY").contains(group), "it is not among the empty ones");
        var found = admin.describeShareGroups(List.of(group)).all().get().get(group);
        Expect.equal(GroupState.EMPTY, found.groupState());
        Expect.equal(0, found.members().size());
    }

    private void offsets(Admin admin) throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        var sent = broker.produceNumbers(topic, 1, 0, 4);
        try (var worker = Worker.explicit(broker, topic, group)) {
            var left = new HashSet<>(List.of("0", "1", "3"));
            worker.work(record -> {
                left.remove(record.value());
                return record.value().equals("2") ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT;
            }, left::isEmpty);
        }
        Expect.equal(Optional.of(1L), lag(admin, group, topic));
        broker.produceNumbers(topic, 1, 4, 6);
        Expect.equal(Optional.of(3L), lag(admin, group, topic));
        try (var worker = Worker.explicit(broker, topic, group)) {
            var left = new HashSet<>(List.of("2", "4", "5"));
            worker.work(record -> {
                left.remove(record.value());
                return AcknowledgeType.ACCEPT;
            }, left::isEmpty);
        }
        Expect.equal(Optional.of(0L), lag(admin, group, topic));
        // Apache Kafka stores the start offset from before a change with the change.
        Expect.that(startOffset(admin, group, topic, 0) >= sent.get(2).offset(), "it did not go on");
    }

    private void altered(Admin admin) throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        var sent = broker.produceNumbers(topic, 1, 0, 5);
        try (var worker = new Worker(broker, topic, group)) {
            worker.take(5);
        }
        admin.alterShareGroupOffsets(group, Map.of(new TopicPartition(topic, 0), sent.get(3).offset())).all().get();
        Expect.equal(sent.get(3).offset(), startOffset(admin, group, topic, 0));
        try (var worker = new Worker(broker, topic, group)) {
            Expect.equal(List.of("3:1", "4:1"), Worker.deliveries(worker.take(2)));
        }
    }

    private void created(Admin admin) throws Exception {
        String topic = broker.newTopic(1);
        String group = broker.newName("share");
        var partition = new TopicPartition(topic, 0);
        var sent = broker.produceNumbers(topic, 1, 0, 3);
        admin.alterShareGroupOffsets(group, Map.of(partition, sent.get(1).offset())).all().get();
        Expect.equal(GroupState.EMPTY, admin.describeShareGroups(List.of(group)).all().get().get(group).groupState());
        Expect.equal(sent.get(1).offset(), startOffset(admin, group, topic, 0));
        var absent = new TopicPartition(topic, 7);
        var answers = admin.alterShareGroupOffsets(group, Map.of(partition, sent.get(2).offset(), absent, 0L));
        answers.partitionResult(partition).get();
        Expect.error(UnknownTopicOrPartitionException.class, () -> answers.partitionResult(absent).get());
        try (var worker = new Worker(broker, topic, group)) {
            Expect.equal(List.of("2:1"), Worker.deliveries(worker.take(1)));
        }
    }

    private void forgotten(Admin admin) throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 2);
        try (var worker = new Worker(broker, topic, group)) {
            worker.take(2);
        }
        admin.deleteShareGroupOffsets(group, Set.of(topic)).all().get();
        Expect.equal(Map.of(), of(admin, group));
        try (var worker = new Worker(broker, topic, group)) {
            Expect.equal(List.of("0:1", "1:1"), Worker.deliveries(worker.take(2)));
        }
        Expect.error(GroupIdNotFoundException.class,
                () -> admin.deleteShareGroupOffsets(broker.newName("share"), Set.of(topic)).all().get());
        Expect.error(UnknownTopicOrPartitionException.class,
                () -> admin.deleteShareGroupOffsets(group, Set.of(broker.newName("topic"))).all().get());
    }

    private void refused(Admin admin) throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        broker.produceNumbers(topic, 1, 0, 1);
        try (var worker = new Worker(broker, topic, group)) {
            worker.take(1);
            Expect.error(GroupNotEmptyException.class, () -> admin.deleteShareGroups(List.of(group)).all().get());
            Expect.error(GroupNotEmptyException.class,
                    () -> admin.alterShareGroupOffsets(group, Map.of(new TopicPartition(topic, 0), 0L)).all().get());
            Expect.error(GroupNotEmptyException.class,
                    () -> admin.deleteShareGroupOffsets(group, Set.of(topic)).all().get());
        }
    }

    private void deleted(Admin admin) throws Exception {
        String topic = broker.newTopic(1);
        String group = Worker.newGroup(broker);
        String absent = broker.newName("share");
        broker.produceNumbers(topic, 1, 0, 1);
        try (var worker = new Worker(broker, topic, group)) {
            worker.take(1);
        }
        var answers = admin.deleteShareGroups(List.of(group, absent)).deletedGroups();
        answers.get(group).get();
        Expect.error(GroupIdNotFoundException.class, () -> answers.get(absent).get());
        Expect.error(GroupIdNotFoundException.class, () -> admin.describeShareGroups(List.of(group)).all().get());
        try (var worker = new Worker(broker, topic, group)) { // the settings of the group outlive it
            Expect.equal(List.of("0:1"), Worker.deliveries(worker.take(1)));
        }
    }

    private void otherType(Admin admin) throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        String classic = broker.newName("group");
        admin.alterConsumerGroupOffsets(classic, Map.of(partition, new OffsetAndMetadata(0))).all().get();
        Expect.error(GroupIdNotFoundException.class, () -> admin.describeShareGroups(List.of(classic)).all().get());
        Expect.error(GroupIdNotFoundException.class,
                () -> admin.alterShareGroupOffsets(classic, Map.of(partition, 0L)).all().get());
        String share = broker.newName("share");
        admin.alterShareGroupOffsets(share, Map.of(partition, 0L)).all().get();
        Expect.error(GroupIdNotFoundException.class, () -> admin.describeConsumerGroups(List.of(share)).all().get());
        Expect.error(GroupIdNotFoundException.class,
                () -> admin.alterConsumerGroupOffsets(share, Map.of(partition, new OffsetAndMetadata(0))).all().get());
    }

    private void settings(Admin admin) throws Exception {
        String group = Worker.newGroup(broker, "share.delivery.count.limit", "4");
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        var found = admin.describeConfigs(List.of(resource)).all().get().get(resource);
        Expect.equal("earliest", found.get("share.auto.offset.reset").value());
        Expect.equal("4", found.get("share.delivery.count.limit").value());
        Expect.equal("2000", found.get("share.partition.max.record.locks").value());
        Expect.equal("read_uncommitted", found.get("share.isolation.level").value());
        Expect.error(InvalidConfigurationException.class,
                () -> Worker.configure(broker, group, "share.delivery.count.limit", "1"));
        Expect.error(InvalidConfigurationException.class,
                () -> Worker.configure(broker, group, "share.auto.offset.reset", "somewhere"));
    }

    /** The number of partitions that members of the group have. */
    private static long assigned(Admin admin, String group) throws Exception {
        return admin.describeShareGroups(List.of(group)).all().get().get(group).members().stream()
                .mapToLong(member -> member.assignment().topicPartitions().size()).sum();
    }

    private static Map<TopicPartition, SharePartitionOffsetInfo> of(Admin admin, String group) throws Exception {
        var asked = Map.of(group, new ListShareGroupOffsetsSpec());
        return admin.listShareGroupOffsets(asked).partitionsToOffsetInfo(group).get();
    }

    /** The start offset of a partition, -1 before there is one. */
    static long startOffset(Admin admin, String group, String topic, int partition) throws Exception {
        var found = of(admin, group).get(new TopicPartition(topic, partition));
        return found == null ? -1 : found.startOffset();
    }

    /** The lag of the first partition, empty before it has a start offset. */
    static Optional<Long> lag(Admin admin, String group, String topic) throws Exception {
        var found = of(admin, group).get(new TopicPartition(topic, 0));
        return found == null ? Optional.empty() : found.lag();
    }

    private static List<String> listed(Admin admin, String state) throws Exception {
        var options = new ListGroupsOptions().withTypes(Set.of(GroupType.SHARE)).inGroupStates(Set.of(GroupState.valueOf(state)));
        return admin.listGroups(options).all().get().stream().map(group -> group.groupId()).toList();
    }
}
