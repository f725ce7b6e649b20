import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListConsumerGroupsOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.ConsumerGroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.GroupSubscribedToTopicException;
import org.apache.kafka.common.errors.UnknownMemberIdException;

/** The admin client on consumer groups and their offsets. */
final class GroupAdministration {
    private final Broker broker;

    GroupAdministration(Broker broker) {
        this.broker = broker;
    }

    void addTo(Conformance checks) {
        add(checks, "list and describe, with members and their partitions", this::described);
        add(checks, "offsets of a group: alter, list, delete", this::offsets);
        add(checks, "lag, as tools compute it", this::lag);
        add(checks, "a group with members cannot be deleted or altered", this::refused);
        add(checks, "delete groups with individual errors", this::deleted);
        add(checks, "offsets of many groups in one request", this::manyGroups);
        add(checks, "members are removed, static ones by instance id", this::removed);
    }

    private void add(Conformance checks, String name, Administration.Task task) {
        checks.add("admin of groups: " + name, () -> {
            try (var admin = broker.admin()) {
                task.run(admin);
            }
        });
    }

    @SuppressWarnings("deprecation") // what 3.x and 4.x both have
    private void described(Admin admin) throws Exception {
        String topic = broker.newTopic(4);
        String group = broker.newName("group");
        try (var one = new Member(broker, topic, group, "client.id", "one");
                var two = new Member(broker, topic, group, "client.id", "two", "group.instance.id", "number-two")) {
            Expect.eventually("both share", () -> one.count() == 2 && two.count() == 2);
            var found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            Expect.equal(ConsumerGroupState.STABLE, found.state());
            Expect.equal("range", found.partitionAssignor());
            Expect.equal(2, found.members().size());
            for (var member : found.members()) {
                var wanted = member.clientId().equals("one") ? one : two;
                Expect.equal(wanted.metadata.memberId(), member.consumerId());
                Expect.equal(wanted == two, member.groupInstanceId().isPresent());
                Expect.equal(Set.copyOf(wanted.partitions), numbers(member.assignment().topicPartitions()));
                Expect.that(member.host().contains("127.0.0.1"), "host " + member.host());
            }
            var stable = new ListConsumerGroupsOptions().inStates(Set.of(ConsumerGroupState.STABLE));
            Expect.that(listed(admin, stable).contains(group), "it is not among the stable ones");
            var empty = new ListConsumerGroupsOptions().inStates(Set.of(ConsumerGroupState.EMPTY));
            Expect.that(!listed(admin, empty).contains(group), "it is among the empty ones");
        }
    }

    private void offsets(Admin admin) throws Exception {
        String topic = broker.newTopic(2);
        String group = broker.newName("group");
        var first = new TopicPartition(topic, 0);
        var second = new TopicPartition(topic, 1);
        admin.alterConsumerGroupOffsets(group, Map.of(first, new OffsetAndMetadata(3, "note"), second, new OffsetAndMetadata(0))).all().get();
        var found = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        Expect.equal(Map.of(first, new OffsetAndMetadata(3, "note"), second, new OffsetAndMetadata(0)), found);

        admin.deleteConsumerGroupOffsets(group, Set.of(first)).all().get();
        Expect.equal(Set.of(second), admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().keySet());
        Expect.equal(Map.of(), admin.listConsumerGroupOffsets(broker.newName("group")).partitionsToOffsetAndMetadata().get());
    }

    private void lag(Admin admin) throws Exception {
        String topic = broker.newTopic(1);
        String group = broker.newName("group");
        var partition = new TopicPartition(topic, 0);
        broker.produceNumbers(topic, 1, 0, 30);
        try (var member = new Member(broker, topic, group)) {
            Expect.eventually("30 records", () -> member.values.size() == 30);
            Expect.eventually("no lag", () -> Administration.unchecked(() -> lagOf(admin, group, partition)) == 0);
        }
        broker.produceNumbers(topic, 1, 30, 35);
        long lag = lagOf(admin, group, partition);
        Expect.that(lag >= 5, "a lag of " + lag + " with five records to read");
    }

    private void refused(Admin admin) throws Exception {
        String topic = broker.newTopic(1);
        String group = broker.newName("group");
        var partition = new TopicPartition(topic, 0);
        broker.produceNumbers(topic, 1, 0, 1);
        try (var member = new Member(broker, topic, group)) {
            Expect.eventually("one record", () -> member.values.size() == 1);
            Expect.error(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
            Expect.error(UnknownMemberIdException.class,
                    () -> admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(0))).all().get());
            Expect.error(GroupSubscribedToTopicException.class,
                    () -> admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get());
        }
    }

    private void deleted(Admin admin) throws Exception {
        String group = broker.newName("group");
        String absent = broker.newName("group");
        var partition = new TopicPartition(broker.newTopic(1), 0);
        admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(0))).all().get();
        Expect.that(listed(admin, new ListConsumerGroupsOptions()).contains(group), "it is not listed");
        var answers = admin.deleteConsumerGroups(List.of(group, absent)).deletedGroups();
        answers.get(group).get();
        Expect.error(GroupIdNotFoundException.class, () -> answers.get(absent).get());
        Expect.that(!listed(admin, new ListConsumerGroupsOptions()).contains(group), "it is listed");
    }

    private void manyGroups(Admin admin) throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        var asked = new HashMap<String, ListConsumerGroupOffsetsSpec>();
        for (int i = 0; i < 10; i++) {
            String group = broker.newName("group");
            admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(i))).all().get();
            asked.put(group, new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(partition)));
        }
        var found = admin.listConsumerGroupOffsets(asked).all().get();
        Expect.equal(45L, found.values().stream().mapToLong(offsets -> offsets.get(partition).offset()).sum());
    }

    private void removed(Admin admin) throws Exception {
        String topic = broker.newTopic(2);
        String group = broker.newName("group");
        try (var fixed = new Member(broker, topic, group, "group.instance.id", "fixed", "heartbeat.interval.ms", 300)) {
            Expect.eventually("it is there", () -> fixed.count() == 2 && fixed.isSettled());
            var members = List.of(new MemberToRemove("fixed"));
            admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(members)).all().get();
            Expect.eventually("it lost its partitions or failed", () -> fixed.error != null || fixed.events.size() > 1);
        }
        admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions()).all().get();
        Expect.equal(0, admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size());
        admin.deleteConsumerGroups(List.of(group)).all().get();
    }

    private static long lagOf(Admin admin, String group, TopicPartition partition) throws Exception {
        var committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition);
        return committed == null ? -1 : Administration.offset(admin, partition, OffsetSpec.latest()) - committed.offset();
    }

    @SuppressWarnings("deprecation") // what 3.x and 4.x both have
    private static List<String> listed(Admin admin, ListConsumerGroupsOptions options) throws Exception {
        return admin.listConsumerGroups(options).all().get().stream().map(group -> group.groupId()).toList();
    }

    private static Set<Integer> numbers(Set<TopicPartition> partitions) {
        return partitions.stream().map(TopicPartition::partition).collect(Collectors.toSet());
    }
}
