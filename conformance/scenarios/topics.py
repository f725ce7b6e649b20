"""Topics: Metadata, CreateTopics, DeleteTopics, CreatePartitions, DescribeTopicPartitions."""

from __future__ import annotations

from uuid import UUID

from conformance.scenario import scenario
from conformance.scenarios.records import batch
from conformance.talk import Talk
from korvet.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from korvet.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

BY_ID = 10  # Metadata
DELETE_BY_ID = 6
BAD_NAMES = ("", ".", "..", "a b", "a/b", "ä", "x" * 250)


def metadata(*names: str, create: bool = False, operations: bool = False) -> MetadataRequest:
    """Return a request for topics by name."""
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=create,
        include_topic_authorized_operations=operations,
    )


def creatable(
    name: str,
    partitions: int = 1,
    factor: int = 1,
    *,
    assignments: dict[int, list[int]] | None = None,
    **configs: str,
) -> CreatableTopic:
    """Return a topic to create; settings have `_` for `.`."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in (assignments or {}).items()
        ],
        configs=[config(key, value) for key, value in configs.items()],
    )


def config(key: str, value: str) -> CreatableTopicConfig:
    """Return a setting; its name has `_` for `.`."""
    return CreatableTopicConfig(name=key.replace("_", "."), value=value)


def create(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    """Return a request to create topics."""
    return CreateTopicsRequest(topics=list(topics), timeout_ms=10_000, validate_only=validate_only)


def delete(version: int, *names: str, topic_id: UUID | None = None) -> DeleteTopicsRequest:
    """Return a request to delete topics, in the form of that version."""
    if version < DELETE_BY_ID:
        return DeleteTopicsRequest(topic_names=list(names), timeout_ms=10_000)
    topics = [DeleteTopicState(name=name) for name in names]
    if topic_id is not None:
        topics.append(DeleteTopicState(topic_id=topic_id))
    return DeleteTopicsRequest(topics=topics, timeout_ms=10_000)


def partitions(
    name: str, count: int, *assignments: list[int], validate_only: bool = False
) -> CreatePartitionsRequest:
    """Return a request to add partitions to one topic."""
    assigned = [CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignments] or None
    topic = CreatePartitionsTopic(name=name, count=count, assignments=assigned)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=10_000, validate_only=validate_only)


# Metadata


@scenario(MetadataRequest, 1)
def metadata_of_topics(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=3)
    flag = {"create": version < 4}  # earlier versions cannot turn creation off
    talk.ask(metadata(topic, **flag), version, "one")
    talk.ask(metadata(topic, topic, **flag), version, "one twice")
    talk.ask(MetadataRequest(topics=[], allow_auto_topic_creation=True), version, "none")
    talk.ask(MetadataRequest(topics=None, allow_auto_topic_creation=True), version, "all")


@scenario(MetadataRequest, 0, 0)
def metadata_of_version_0(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.ask(metadata(topic, create=True), version, "one")
    talk.ask(MetadataRequest(topics=[]), version, "no names are all")


@scenario(MetadataRequest)
def invalid_topic_names(talk: Talk, version: int) -> None:
    for name in BAD_NAMES:
        talk.ask(metadata(name, create=True), version, repr(name[:9]))


@scenario(MetadataRequest, 4)
def missing_topics(talk: Talk, version: int) -> None:
    talk.ask(metadata(talk.name("nowhere")), version, "unknown, and not to be made")
    talk.ask(metadata(talk.name("nowhere")), version, "still unknown")


@scenario(MetadataRequest)
def topic_created_on_first_use(talk: Talk, version: int) -> None:
    talk.ask(metadata(talk.name("new"), create=True), version, "at first")
    talk.until_ready("new")
    talk.ask(metadata(talk.name("new"), create=True), version, "after a moment")


@scenario(MetadataRequest, 8)
def authorized_operations(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.ask(metadata(topic, operations=True), version, "of topics")
    if version <= 10:
        request = MetadataRequest(topics=[], include_cluster_authorized_operations=True)
        talk.ask(request, version, "of the cluster")


@scenario(MetadataRequest, BY_ID)
def metadata_by_id(talk: Talk, version: int) -> None:
    talk.topic("orders")
    by_id = [MetadataRequestTopic(topic_id=talk.topic_id("orders"), name=None)]
    unknown = [MetadataRequestTopic(topic_id=UUID(int=77), name=None)]
    for topics, label in (
        (by_id, "known"),
        (unknown, "unknown"),
        ([MetadataRequestTopic(name=None)], "no id"),
    ):
        talk.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False), version, label)


@scenario()
def internal_topics(talk: Talk, _version: int) -> None:
    for name in ("__consumer_offsets", "__transaction_state"):
        talk.ask(metadata(name, create=True), label=name)
        talk.ask(create(creatable(name), validate_only=True), label=f"{name} is to be made")
        talk.ask(partitions(name, 2, validate_only=True), label=f"{name} is to have more partitions")


@scenario(DescribeTopicPartitionsRequest)
def describe_topic_partitions(talk: Talk, version: int) -> None:
    names = [talk.topic(short, partitions=3) for short in ("a", "b", "c")]
    topics = [TopicRequest(name=name) for name in names]
    talk.ask(DescribeTopicPartitionsRequest(topics=topics), version, "three topics")
    for limit in (1, 3, 4, 0, -1):
        request = DescribeTopicPartitionsRequest(topics=topics, response_partition_limit=limit)
        talk.ask(request, version, f"at most {limit} partitions")
    for short, partition in (("a", 2), ("b", 0), ("b", 5), ("d", 0), ("b", -1)):
        cursor = Cursor(topic_name=talk.name(short), partition_index=partition)
        talk.ask(
            DescribeTopicPartitionsRequest(topics=topics, cursor=cursor), version, f"from {short} {partition}"
        )
    unknown = [
        TopicRequest(name=talk.name("nowhere")),
        TopicRequest(name=names[0]),
        TopicRequest(name=names[0]),
    ]
    talk.ask(DescribeTopicPartitionsRequest(topics=unknown), version, "an unknown one, and one twice")
    talk.ask(
        DescribeTopicPartitionsRequest(topics=[TopicRequest(name="a b")]), version, "a name that cannot be"
    )


# CreateTopics


@scenario(CreateTopicsRequest)
def creating_topics(talk: Talk, version: int) -> None:
    talk.ask(create(creatable(talk.name("one"))), version, "one")
    talk.ask(create(creatable(talk.name("one"))), version, "one again")
    talk.ask(
        create(creatable(talk.name("two"), 3, retention_ms="1000", cleanup_policy="delete")),
        version,
        "with settings",
    )
    talk.ask(
        create(creatable(talk.name("a")), creatable(talk.name("one"))), version, "a new one and an old one"
    )
    talk.ask(create(), version, "none")
    if version >= 4:
        talk.ask(create(creatable(talk.name("defaults"), -1, -1)), version, "defaults")


@scenario(CreateTopicsRequest)
def invalid_creations(talk: Talk, version: int) -> None:
    for name in BAD_NAMES:
        talk.ask(create(creatable(name)), version, repr(name[:9]))
    name = talk.name("orders")
    for count in (0, -2):
        talk.ask(create(creatable(name, count)), version, f"{count} partitions")
    for factor in (0, -2, 2):
        talk.ask(create(creatable(f"{name}{factor}", 1, factor)), version, f"replication factor {factor}")
    talk.ask(create(creatable(name), creatable(name)), version, "a topic named twice")
    for setting, value in (
        ("retention_ms", "a week"),
        ("retention_ms", "-2"),
        ("retention_ms", ""),
        ("no_such_setting", "1"),
        ("cleanup_policy", "shred"),
        ("compression_type", "rar"),
        ("max_message_bytes", "-1"),
        ("min_insync_replicas", "0"),
        ("unclean_leader_election_enable", "perhaps"),
        ("segment_bytes", "10"),
        ("local_retention_ms", "700000000"),
    ):
        topic = creatable(name)
        topic.configs.append(config(setting, value))
        talk.ask(create(topic), version, f"{setting}={value}")
    without = CreatableTopic(
        name=name,
        num_partitions=1,
        replication_factor=1,
        configs=[CreatableTopicConfig(name="retention.ms", value=None)],
    )
    talk.ask(create(without), version, "a setting without a value")
    talk.ask(create(creatable("a b", no_such_setting="1")), version, "a bad name and a bad setting")
    talk.ask(create(creatable(name, 0, 5, no_such_setting="1")), version, "everything is wrong")


@scenario(CreateTopicsRequest)
def colliding_names(talk: Talk, version: int) -> None:
    talk.topic("a.b")
    talk.ask(create(creatable(talk.name("a_b"))), version, "with one that is there")
    talk.ask(create(creatable(talk.name("c.d")), creatable(talk.name("c_d"))), version, "with each other")


@scenario(CreateTopicsRequest)
def validate_only(talk: Talk, version: int) -> None:
    talk.ask(create(creatable(talk.name("orders"), 2), validate_only=True), version, "a good one")
    talk.ask(create(creatable(talk.name("orders"), 0), validate_only=True), version, "a bad one")
    talk.ask(metadata(talk.name("orders")), label="nothing is there")


@scenario(CreateTopicsRequest)
def assignments(talk: Talk, version: int) -> None:
    name = talk.name("orders")
    cases: tuple[tuple[str, int, int, dict[int, list[int]]], ...] = (
        ("to the broker", -1, -1, {0: [1], 1: [1]}),
        ("to a broker that there is not", -1, -1, {0: [7]}),
        ("to a broker twice", -1, -1, {0: [1, 1]}),
        ("to no broker", -1, -1, {0: []}),
        ("with a gap", -1, -1, {0: [1], 2: [1]}),
        ("that does not begin at 0", -1, -1, {1: [1]}),
        ("with a number of partitions, too", 1, -1, {0: [1]}),
        ("with a replication factor, too", -1, 1, {0: [1]}),
    )
    for label, partitions_, factor, given in cases:
        topic = creatable(f"{name}-{len(label)}", partitions_, factor, assignments=given)
        talk.ask(create(topic), version, label)


# DeleteTopics


@scenario(DeleteTopicsRequest)
def deleting_topics(talk: Talk, version: int) -> None:
    topic, other = talk.topic("orders"), talk.topic("other")
    talk.fill("orders", batch())
    talk.ask(delete(version, topic, talk.name("nowhere")), version, "one, and an unknown one")
    talk.until_gone("orders")
    talk.ask(delete(version, topic), version, "one again")
    talk.ask(delete(version, other, other), version, "one twice")
    talk.ask(delete(version), version, "none")
    talk.ask(delete(version, ""), version, "no name")


@scenario(DeleteTopicsRequest, DELETE_BY_ID)
def deleting_topics_by_id(talk: Talk, version: int) -> None:
    name = talk.topic("orders")
    both = [DeleteTopicState(name=name, topic_id=talk.topic_id("orders"))]
    talk.ask(DeleteTopicsRequest(topics=both, timeout_ms=10_000), version, "a name and an id")
    neither = [DeleteTopicState()]
    talk.ask(DeleteTopicsRequest(topics=neither, timeout_ms=10_000), version, "neither")
    talk.ask(delete(version, topic_id=talk.topic_id("orders")), version, "an id")
    talk.until_gone("orders")
    talk.ask(delete(version, topic_id=talk.topic_id("orders")), version, "an id again")
    talk.ask(delete(version, topic_id=UUID(int=77)), version, "an unknown id")


@scenario()
def recreated_topic_is_empty(talk: Talk, _version: int) -> None:
    name = talk.topic("orders", retention_ms="1234567")
    talk.fill("orders", batch())
    talk.tell(delete(6, name))
    talk.until_gone("orders")
    talk.ask(create(creatable(name, 2)))
    talk.until_ready("orders", 2)
    talk.ask(metadata(name))


# CreatePartitions


@scenario(CreatePartitionsRequest)
def creating_partitions(talk: Talk, version: int) -> None:
    name = talk.topic("orders")
    talk.ask(partitions(name, 3), version, "two more")
    talk.until_ready("orders", 3)
    for count in (3, 2, 1, 0, -1):
        talk.ask(partitions(name, count), version, f"{count} in all")
    talk.ask(partitions(talk.name("nowhere"), 2), version, "an unknown topic")
    talk.ask(partitions(name, 5, validate_only=True), version, "only validated")
    talk.ask(partitions(name, 4, [1]), version, "one more, assigned")
    talk.until_ready("orders", 4)
    talk.ask(partitions(name, 5, [7]), version, "assigned to a broker that there is not")
    talk.ask(partitions(name, 5, [1], [1]), version, "more assignments than partitions")
    talk.ask(partitions(name, 6, [1]), version, "fewer assignments than partitions")
    talk.ask(partitions(name, 5, []), version, "assigned to nobody")
    talk.ask(partitions(name, 5, [1, 1]), version, "assigned to a broker twice")
    twice = [CreatePartitionsTopic(name=name, count=count, assignments=None) for count in (6, 7)]
    talk.ask(
        CreatePartitionsRequest(topics=twice, timeout_ms=5000, validate_only=False), version, "named twice"
    )
    talk.ask(CreatePartitionsRequest(topics=[], timeout_ms=5000, validate_only=False), version, "none")
    talk.ask(metadata(name), label="in the end")
