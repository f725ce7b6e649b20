import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.InconsistentGroupProtocolException;

/** Members of consumer groups: they come together, go, fall silent, and take partitions over. */
final class Groups {
    private static final String ASSIGNORS = "org.apache.kafka.clients.consumer.";
    private static final int PARTITIONS = 6;
    private final Broker broker;

    Groups(Broker broker) {
        this.broker = broker;
    }

    void addTo(Conformance checks) {
        for (String assignor : List.of("RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor")) {
            checks.add("group: two members join concurrently and share, " + assignor, () -> shared(assignor, 2));
        }
        checks.add("group: six members join concurrently and get one partition each", () -> shared("CooperativeStickyAssignor", 6));
        checks.add("group: eager members revoke all partitions before a new assignment", this::eagerOrder);
        checks.add("group: cooperative members revoke only moved partitions", this::cooperativeOrder);
        checks.add("group: remaining member resumes the partitions of a leaving one", this::handOver);
        checks.add("group: a member that stops polling loses its partitions and cannot commit", this::silent);
        checks.add("group: a restarted static member causes no rebalance", this::staticRejoin);
        checks.add("group: a second member of the same instance id fences the first", this::fenced);
        checks.add("group: new partitions are assigned", this::newPartitions);
        checks.add("group: members of different protocols are refused", this::inconsistent);
        checks.add("group: group.protocol=consumer works", this::nextGeneration);
    }

    private void shared(String assignor, int count) throws Exception {
        String topic = broker.newTopic(PARTITIONS);
        String group = broker.newName("group");
        broker.produceNumbers(topic, PARTITIONS, 0, 120);
        var members = new ArrayList<Member>();
        try {
            for (int i = 0; i < count; i++) {
                members.add(new Member(broker, topic, group, "partition.assignment.strategy", ASSIGNORS + assignor));
            }
            Expect.eventually("all share", () -> shares(members, PARTITIONS / count));
            broker.produceNumbers(topic, PARTITIONS, 120, 240);
            Expect.eventually("240 records", () -> distinct(members).size() == 240);
            Expect.equal(List.of(), members.stream().map(member -> member.error).filter(error -> error != null).toList());
        } finally {
            members.forEach(Member::close);
        }
    }

    private void eagerOrder() throws Exception {
        String topic = broker.newTopic(2);
        String group = broker.newName("group");
        try (var first = new Member(broker, topic, group, "partition.assignment.strategy", ASSIGNORS + "RangeAssignor")) {
            Expect.eventually("the first has all", () -> first.count() == 2);
            try (var second = new Member(broker, topic, group, "partition.assignment.strategy", ASSIGNORS + "RangeAssignor")) {
                Expect.eventually("both have one", () -> first.count() == 1 && second.count() == 1);
                int kept = first.partitions.iterator().next();
                Expect.equal(List.of("assigned 0 1", "revoked 0 1", "assigned " + kept), first.events);
                Expect.equal(List.of("assigned " + (1 - kept)), second.events);
            }
        }
    }

    private void cooperativeOrder() throws Exception {
        String topic = broker.newTopic(4);
        String group = broker.newName("group");
        String assignor = ASSIGNORS + "CooperativeStickyAssignor";
        try (var first = new Member(broker, topic, group, "partition.assignment.strategy", assignor)) {
            Expect.eventually("the first has all", () -> first.count() == 4);
            try (var second = new Member(broker, topic, group, "partition.assignment.strategy", assignor)) {
                Expect.eventually("both have two", () -> first.count() == 2 && second.count() == 2);
                var kept = first.partitions.stream().toList();
                var moved = IntStream.range(0, 4).filter(number -> !kept.contains(number)).boxed().toList();
                Expect.equal(List.of("assigned 0 1 2 3", "revoked " + joined(moved)), partitionEvents(first));
                Expect.equal(List.of("assigned " + joined(moved)), partitionEvents(second));
            }
            Expect.eventually("the first has all again", () -> first.count() == 4);
        }
    }

    private void handOver() throws Exception {
        String topic = broker.newTopic(4);
        String group = broker.newName("group");
        broker.produceNumbers(topic, 4, 0, 100);
        try (var stays = new Member(broker, topic, group); var leaves = new Member(broker, topic, group)) {
            Expect.eventually("both share", () -> stays.count() == 2 && leaves.count() == 2);
            Expect.eventually("all is read", () -> distinct(List.of(stays, leaves)).size() == 100);
            leaves.close();
            broker.produceNumbers(topic, 4, 100, 200);
            Expect.eventually("one has all", () -> stays.count() == 4);
            Expect.eventually("all is read", () -> distinct(List.of(stays, leaves)).size() == 200);
        }
    }

    private void silent() throws Exception {
        String topic = broker.newTopic(1);
        String group = broker.newName("group");
        broker.produceNumbers(topic, 1, 0, 1);
        try (var silent = broker.textConsumer("group.id", group, "max.poll.interval.ms", 1_500, "max.poll.records", 1)) {
            silent.subscribe(List.of(topic));
            long offset = Broker.poll(silent, 1).get(0).offset();
            try (var other = new Member(broker, topic, group)) {
                Expect.eventually("the other has it", () -> other.count() == 1);
                var position = Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset));
                Expect.error(CommitFailedException.class, () -> silent.commitSync(position));
            }
        }
    }

    private void staticRejoin() throws Exception {
        String topic = broker.newTopic(4);
        String group = broker.newName("group");
        try (var other = new Member(broker, topic, group, "group.instance.id", "other")) {
            var first = new Member(broker, topic, group, "group.instance.id", "one");
            try {
                Expect.eventually("both share", () -> first.count() == 2 && other.count() == 2 && first.isSettled());
            } finally {
                first.close(); // a static member does not leave
            }
            int generation = first.metadata.generationId();
            try (var again = new Member(broker, topic, group, "group.instance.id", "one")) {
                Expect.eventually("it is back", () -> again.count() == 2 && again.isSettled());
                Expect.equal(generation, again.metadata.generationId());
                Expect.that(!first.metadata.memberId().equals(again.metadata.memberId()), "the member id stayed");
                Expect.equal(first.events.get(first.events.size() - 2), again.events.get(0));
                Expect.equal(generation, other.metadata.generationId());
            }
        }
    }

    private void fenced() throws Exception {
        String topic = broker.newTopic(2);
        String group = broker.newName("group");
        try (var first = new Member(broker, topic, group, "group.instance.id", "one", "heartbeat.interval.ms", 300)) {
            Expect.eventually("the first is there", () -> first.count() == 2);
            try (var second = new Member(broker, topic, group, "group.instance.id", "one")) {
                Expect.eventually("the second has it all", () -> second.count() == 2);
                Expect.eventually("the first is fenced", () -> first.error != null);
                Expect.that(first.error instanceof FencedInstanceIdException, "it failed with " + first.error);
            }
        }
    }

    private void newPartitions() throws Exception {
        String topic = broker.newTopic(1);
        String group = broker.newName("group");
        try (var admin = broker.admin();
                var member = new Member(broker, topic, group, "metadata.max.age.ms", 500)) {
            Expect.eventually("it has one", () -> member.count() == 1);
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
            Expect.eventually("it has three", () -> member.count() == 3);
        }
    }

    private void inconsistent() throws Exception {
        String topic = broker.newTopic(1);
        String group = broker.newName("group");
        try (var first = new Member(broker, topic, group, "partition.assignment.strategy", ASSIGNORS + "RangeAssignor")) {
            Expect.eventually("the first is there", () -> first.count() == 1);
            try (var other = broker.textConsumer("group.id", group, "partition.assignment.strategy", ASSIGNORS + "StickyAssignor")) {
                other.subscribe(List.of(topic));
                Expect.error(InconsistentGroupProtocolException.class,
                        () -> Expect.eventually("an error", () -> !other.poll(Duration.ofMillis(100)).isEmpty()));
            }
        }
    }

    private void nextGeneration() throws Exception {
        String topic = broker.newTopic(1);
        broker.produceNumbers(topic, 1, 0, 1);
        try (var consumer = broker.textConsumer("group.id", broker.newName("group"), "group.protocol", "consumer")) {
            consumer.subscribe(List.of(topic));
            Broker.poll(consumer, 1);
        }
    }

    private static boolean shares(List<Member> members, int each) {
        return members.stream().allMatch(member -> member.count() == each);
    }

    private static HashSet<String> distinct(List<Member> members) {
        var values = new HashSet<String>();
        members.forEach(member -> values.addAll(member.values));
        return values;
    }

    /** The events that name partitions: cooperative members are also told of every rebalance that moves nothing. */
    private static List<String> partitionEvents(Member member) {
        return member.events.stream().filter(event -> event.contains(" ")).toList();
    }

    private static String joined(List<Integer> numbers) {
        return String.join(" ", numbers.stream().map(String::valueOf).toList());
    }
}
