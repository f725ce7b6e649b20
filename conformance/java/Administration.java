import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigsOptions;
import org.apache.kafka.clients.admin.ConfigEntry.ConfigSource;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** The admin client on topics, settings and the cluster. */
final class Administration {
    private final Broker broker;

    Administration(Broker broker) {
        this.broker = broker;
    }

    /** A check that is given an admin client. */
    interface Task {
        void run(Admin admin) throws Exception;
    }

    void addTo(Conformance checks) {
        add(checks, "create a topic with settings, describe, list, delete it", this::topicLife);
        add(checks, "invalid topics are refused with individual errors", this::refusedTopics);
        add(checks, "validate_only creates no topic", this::validateOnly);
        add(checks, "topics by their ids", this::byId);
        add(checks, "partitions can be added but not removed", this::partitions);
        add(checks, "settings of a topic: set, append, subtract, delete", this::settings);
        add(checks, "invalid settings are refused without a change", this::refusedSettings);
        add(checks, "settings of the broker, with documentation and synonyms", this::brokerSettings);
        add(checks, "delete records, and the log starts there", this::deleteRecords);
        add(checks, "offsets: earliest, latest, of the greatest timestamp, by time", this::offsets);
        add(checks, "log directories have sizes", this::logDirs);
        add(checks, "the cluster: its id, nodes, controller, features", this::cluster);
        add(checks, "many topics in pages", this::manyTopics);
        add(checks, "elections are not needed", this::elections);
    }

    private void add(Conformance checks, String name, Task task) {
        checks.add("admin: " + name, () -> {
            try (var admin = broker.admin()) {
                task.run(admin);
            }
        });
    }

    private void topicLife(Admin admin) throws Exception {
        String topic = broker.newName("topic");
        var created = admin.createTopics(List.of(new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "3600000"))));
        Expect.equal(3, created.numPartitions(topic).get());
        Expect.equal("3600000", created.config(topic).get().get("retention.ms").value());
        Expect.eventually("it is listed", () -> names(admin).contains(topic));

        var found = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        Expect.equal(created.topicId(topic).get(), found.topicId());
        Expect.equal(List.of(0, 1, 2), found.partitions().stream().map(partition -> partition.partition()).toList());
        Expect.equal(found.partitions().get(0).leader(), found.partitions().get(0).isr().get(0));
        admin.deleteTopics(List.of(topic)).all().get();
        Expect.eventually("it is not listed", () -> !names(admin).contains(topic));
        Expect.error(UnknownTopicOrPartitionException.class, () -> admin.describeTopics(List.of(topic)).allTopicNames().get());
        Expect.error(UnknownTopicOrPartitionException.class, () -> admin.deleteTopics(List.of(topic)).all().get());
    }

    private void refusedTopics(Admin admin) throws Exception {
        String there = broker.newTopic(1);
        String good = broker.newName("topic");
        String unknown = broker.newName("topic");
        String bad = broker.newName("topic");
        var wanted = List.of(
                new NewTopic(there, 1, (short) 1),
                new NewTopic("no/topic", 1, (short) 1),
                new NewTopic(broker.newName("topic"), 0, (short) 1),
                new NewTopic(unknown, 1, (short) 1).configs(Map.of("no.such.setting", "1")),
                new NewTopic(bad, 1, (short) 1).configs(Map.of("retention.ms", "soon")),
                new NewTopic(good, 1, (short) 1));
        var answers = admin.createTopics(wanted).values();
        Expect.error(TopicExistsException.class, () -> answers.get(there).get());
        Expect.error(InvalidTopicException.class, () -> answers.get("no/topic").get());
        Expect.error(InvalidPartitionsException.class, () -> answers.get(wanted.get(2).name()).get());
        Expect.error(InvalidConfigurationException.class, () -> answers.get(unknown).get());
        var error = Expect.error(InvalidConfigurationException.class, () -> answers.get(bad).get());
        Expect.that(error.getMessage().contains("retention.ms") && error.getMessage().contains("soon"), error.getMessage());
        answers.get(good).get();
    }

    private void validateOnly(Admin admin) throws Exception {
        var topic = new NewTopic(broker.newName("topic"), Optional.empty(), Optional.empty());
        var created = admin.createTopics(List.of(topic), new CreateTopicsOptions().validateOnly(true));
        created.all().get();
        Expect.that(created.numPartitions(topic.name()).get() >= 1, "no number of partitions");
        Expect.that(!names(admin).contains(topic.name()), "it was created");
    }

    private void byId(Admin admin) throws Exception {
        String topic = broker.newTopic(2);
        var id = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId();
        var found = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id);
        Expect.equal(topic, found.name());
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
        Expect.eventually("it is not listed", () -> !names(admin).contains(topic));
    }

    private void partitions(Admin admin) throws Exception {
        String topic = broker.newTopic(2);
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get();
        Expect.eventually("there are five", () -> partitionsOf(admin, topic) == 5);
        Expect.error(InvalidPartitionsException.class,
                () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get());
        Expect.error(InvalidPartitionsException.class,
                () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(5))).all().get());
        Expect.error(UnknownTopicOrPartitionException.class,
                () -> admin.createPartitions(Map.of(broker.newName("topic"), NewPartitions.increaseTo(2))).all().get());
        broker.produceNumbers(topic, 5, 0, 50);
        broker.readAll(topic, 50);
    }

    private void settings(Admin admin) throws Exception {
        var topic = new ConfigResource(ConfigResource.Type.TOPIC, broker.newTopic(1, "cleanup.policy", "delete"));
        var defaultPolicy = entry(admin, topic, "retention.ms");
        Expect.equal("604800000", defaultPolicy.value());
        Expect.equal(ConfigSource.DEFAULT_CONFIG, defaultPolicy.source());
        Expect.equal(ConfigEntry.ConfigType.LONG, defaultPolicy.type());

        alter(admin, topic, op("retention.ms", "1000", OpType.SET), op("max.message.bytes", "2000", OpType.SET));
        Expect.eventually("it is set", () -> entry(admin, topic, "retention.ms").value().equals("1000"));
        Expect.equal(ConfigSource.DYNAMIC_TOPIC_CONFIG, entry(admin, topic, "retention.ms").source());
        alter(admin, topic, op("retention.ms", null, OpType.DELETE));
        Expect.eventually("it is the default", () -> entry(admin, topic, "retention.ms").value().equals("604800000"));
        Expect.equal("2000", entry(admin, topic, "max.message.bytes").value());

        alter(admin, topic, op("leader.replication.throttled.replicas", "0:1", OpType.APPEND));
        alter(admin, topic, op("leader.replication.throttled.replicas", "1:1", OpType.APPEND));
        Expect.eventually("two", () -> entry(admin, topic, "leader.replication.throttled.replicas").value().equals("0:1,1:1"));
        alter(admin, topic, op("leader.replication.throttled.replicas", "0:1", OpType.SUBTRACT));
        Expect.eventually("one", () -> entry(admin, topic, "leader.replication.throttled.replicas").value().equals("1:1"));
    }

    private void refusedSettings(Admin admin) throws Exception {
        var topic = new ConfigResource(ConfigResource.Type.TOPIC, broker.newTopic(1));
        Expect.error(InvalidConfigurationException.class,
                () -> alter(admin, topic, op("retention.ms", "5", OpType.SET), op("segment.bytes", "many", OpType.SET)));
        Expect.equal("604800000", entry(admin, topic, "retention.ms").value());
        Expect.error(InvalidConfigurationException.class, () -> alter(admin, topic, op("no.such.setting", "5", OpType.SET)));
        var absent = new ConfigResource(ConfigResource.Type.TOPIC, broker.newName("topic"));
        Expect.error(UnknownTopicOrPartitionException.class, () -> alter(admin, absent, op("retention.ms", "5", OpType.SET)));
        Expect.error(UnknownTopicOrPartitionException.class, () -> admin.describeConfigs(List.of(absent)).all().get());
        var only = new AlterConfigsOptions().validateOnly(true);
        admin.incrementalAlterConfigs(Map.of(topic, List.of(op("retention.ms", "5", OpType.SET))), only).all().get();
        Expect.equal("604800000", entry(admin, topic, "retention.ms").value());
    }

    private void brokerSettings(Admin admin) throws Exception {
        var node = admin.describeCluster().nodes().get().iterator().next();
        var resource = new ConfigResource(ConfigResource.Type.BROKER, node.idString());
        var options = new DescribeConfigsOptions().includeDocumentation(true).includeSynonyms(true);
        var all = admin.describeConfigs(List.of(resource), options).all().get().get(resource);
        var entry = all.get("message.max.bytes");
        Expect.equal(ConfigEntry.ConfigType.INT, entry.type());
        Expect.that(Integer.parseInt(entry.value()) > 100_000, entry.value());
        Expect.that(entry.documentation() != null && entry.documentation().length() > 20, "no documentation");
        Expect.that(!entry.synonyms().isEmpty(), "no synonyms");
        Expect.that(all.entries().size() > 20, "only " + all.entries().size() + " settings");
    }

    private void deleteRecords(Admin admin) throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        var sent = broker.produceNumbers(partition.topic(), 1, 0, 20);
        long before = sent.get(7).offset();
        var answer = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(before)));
        Expect.equal(before, answer.lowWatermarks().get(partition).get().lowWatermark());
        Expect.equal(before, offset(admin, partition, OffsetSpec.earliest()));
        Expect.equal("7", Producing.text(broker.readAll(partition.topic(), 13).get(0).value()));
        Expect.error(OffsetOutOfRangeException.class,
                () -> admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(sent.get(19).offset() + 2))).all().get());
        admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(-1))).all().get();
        Expect.equal(offset(admin, partition, OffsetSpec.latest()), offset(admin, partition, OffsetSpec.earliest()));
    }

    private void offsets(Admin admin) throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        long base = System.currentTimeMillis() - 1_000_000;
        var sent = new ArrayList<Future<RecordMetadata>>();
        try (var producer = broker.textProducer()) {
            for (long time : List.of(base + 1, base + 5, base + 3, base + 2)) {
                sent.add(producer.send(new ProducerRecord<>(partition.topic(), 0, time, "key", "value")));
            }
        }

        long earliest = offset(admin, partition, OffsetSpec.earliest());
        Expect.that(0 <= earliest && earliest <= sent.get(0).get().offset(), "it begins at " + earliest);
        Expect.equal(sent.get(3).get().offset() + 1, offset(admin, partition, OffsetSpec.latest()));
        Expect.equal(sent.get(1).get().offset(), offset(admin, partition, OffsetSpec.maxTimestamp()));
        Expect.equal(sent.get(1).get().offset(), offset(admin, partition, OffsetSpec.forTimestamp(base + 2)));
        Expect.equal(-1L, offset(admin, partition, OffsetSpec.forTimestamp(base + 6)));
    }

    private void logDirs(Admin admin) throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        try (var producer = broker.textProducer()) {
            producer.send(new ProducerRecord<>(partition.topic(), "x".repeat(100_000))).get();
        }
        int node = admin.describeCluster().nodes().get().iterator().next().id();
        long size = 0;
        for (var description : admin.describeLogDirs(Set.of(node)).allDescriptions().get().get(node).values()) {
            Expect.equal(null, description.error());
            var replica = description.replicaInfos().get(partition);
            size += replica == null ? 0 : replica.size();
        }
        Expect.that(size > 90_000 && size < 400_000, "100,000 bytes have a size of " + size);
    }

    private void cluster(Admin admin) throws Exception {
        var cluster = admin.describeCluster();
        Expect.equal(1, cluster.nodes().get().size());
        Expect.equal(cluster.nodes().get().iterator().next(), cluster.controller().get());
        Expect.that(cluster.clusterId().get().length() > 5, "cluster id " + cluster.clusterId().get());
        admin.describeFeatures().featureMetadata().get();
    }

    private void manyTopics(Admin admin) throws Exception {
        var wanted = new ArrayList<NewTopic>();
        for (int i = 0; i < 60; i++) {
            wanted.add(new NewTopic(broker.newName("many"), 3, (short) 1));
        }
        admin.createTopics(wanted).all().get();
        var topics = wanted.stream().map(NewTopic::name).toList();
        Expect.eventually("all are listed", () -> names(admin).containsAll(topics));
        var options = new DescribeTopicsOptions().partitionSizeLimitPerResponse(7);
        var found = admin.describeTopics(topics, options).allTopicNames().get();
        Expect.equal(60, found.size());
        Expect.that(found.values().stream().allMatch(topic -> topic.partitions().size() == 3), "partitions are missing");
        admin.deleteTopics(topics).all().get();
    }

    private void elections(Admin admin) throws Exception {
        var partition = new TopicPartition(broker.newTopic(1), 0);
        Expect.error(ElectionNotNeededException.class, () -> {
            var elected = admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get();
            var error = elected.getOrDefault(partition, Optional.empty());
            if (error.isPresent()) {
                throw (Exception) error.get();
            }
        });
    }

    static long offset(Admin admin, TopicPartition partition, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset();
    }

    private static Collection<String> names(Admin admin) {
        return unchecked(() -> admin.listTopics().names().get());
    }

    private static int partitionsOf(Admin admin, String topic) {
        return unchecked(() -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
    }

    private static ConfigEntry entry(Admin admin, ConfigResource resource, String name) {
        return unchecked(() -> admin.describeConfigs(List.of(resource)).all().get().get(resource).get(name));
    }

    private static AlterConfigOp op(String name, String value, OpType type) {
        return new AlterConfigOp(new ConfigEntry(name, value), type);
    }

    private static void alter(Admin admin, ConfigResource resource, AlterConfigOp... operations) throws Exception {
        admin.incrementalAlterConfigs(Map.of(resource, List.of(operations))).all().get();
    }

    static <T> T unchecked(Callable<T> call) {
        try {
            return call.call();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
