"""The cluster: ApiVersions, DescribeCluster, FindCoordinator, InitProducerId, reassignments, log dirs."""

from __future__ import annotations

from conformance.scenario import scenario
from conformance.scenarios.records import batch
from conformance.talk import ANSWER_LIMIT_S, Talk
from korvet.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from korvet.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from korvet.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from korvet.protocol.messages.api_versions import ApiVersionsRequest
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest
from korvet.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from korvet.protocol.messages.describe_quorum import AskedPartition, AskedTopic, DescribeQuorumRequest
from korvet.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from korvet.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.list_config_resources import ListConfigResourcesRequest
from korvet.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from korvet.protocol.messages.metadata import MetadataRequest
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.frames import SIZE

COORDINATORS_IN_A_LIST = 4
LARGE = 100_000  # bytes of a request that takes a broker some time


@scenario(ApiVersionsRequest)
def api_versions(talk: Talk, version: int) -> None:
    named = ApiVersionsRequest(client_software_name="judge", client_software_version="1.0")
    talk.ask(named, version, "the table")
    talk.ask(MetadataRequest(topics=[]), label="and then")


@scenario(ApiVersionsRequest, 3)
def software_names(talk: Talk, version: int) -> None:
    for name, number in (("", ""), ("a b", "1"), ("judge", "-"), ("-judge", "1"), ("x" * 300, "1")):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=number)
        answer = talk.tell(request, version)
        talk.note(f"{name[:9]!r} {number!r}", getattr(answer, "error_code", answer))


@scenario(ApiVersionsRequest, 5)
def intended_broker(talk: Talk, version: int) -> None:
    described = talk.tell(DescribeClusterRequest(include_cluster_authorized_operations=False))
    cluster_id, node_id = described.cluster_id, described.brokers[0].broker_id
    for label, ids in {
        "this broker": (cluster_id, node_id),
        "another cluster": ("another", node_id),
        "a cluster without a name": ("", node_id),
        "another broker": (cluster_id, node_id + 1),
        "a broker of a negative id": (cluster_id, -2),
        "only the cluster": (cluster_id, -1),
        "only the broker": (None, node_id),
        "only another broker": (None, node_id + 1),
        "only another cluster": ("another", -1),
    }.items():
        for software in ("judge", "-"):
            client = talk.client()
            request = ApiVersionsRequest(
                client_software_name=software,
                client_software_version="1.0",
                cluster_id=ids[0],
                node_id=ids[1],
            )
            talk.send(request, version, on=client)
            answer = talk.receive(request, version, "", on=client)
            del talk.steps[-1]
            told = (answer.error_code, bool(answer.api_keys), answer.throttle_time_ms)
            talk.note(f"{label}, from {software!r}", told)
            talk.ask(MetadataRequest(topics=[]), label=f"{label}, from {software!r}, and then", on=client)


def raw_request(key: int, version: int, body: bytes = b"") -> bytes:
    """Return the frame of a request with any API key, with header version 1."""
    data = key.to_bytes(2, "big") + version.to_bytes(2, "big") + (9).to_bytes(4, "big") + b"\xff\xff" + body
    return SIZE.pack(len(data)) + data


def states_filter(elements: int) -> bytes:
    """Return the frame of a ListGroups that filters by this number of empty strings."""
    return raw_request(16, 4, b"\0" + uvarint(elements + 1) + b"\1" * elements + b"\0")


def tagged_fields(count: int) -> bytes:
    """Return the frame of a ListGroups with this number of tagged fields that no broker knows."""
    tags = b"".join(uvarint(tag) + b"\0" for tag in range(100, 100 + count))
    return raw_request(16, 4, b"\0\1" + uvarint(count) + tags)


def uvarint(value: int) -> bytes:
    """Return a number that is not negative as Kafka's UNSIGNED_VARINT."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(data) + bytes([value])


@scenario()
def malformed_requests(talk: Talk, _version: int) -> None:
    metadata = MetadataRequest(topics=[])
    for label, data in {
        "ApiVersions of a version to come": raw_request(18, 99),
        "an API that there is not": raw_request(999, 0),
        "Metadata of a version to come": raw_request(3, 99),
        "Metadata with bytes left over": raw_request(3, 1, b"\0\0\0\0\0\0"),
        "Metadata cut off": raw_request(3, 1, b"\0\0"),
        "an array of a negative length": raw_request(3, 1, b"\xff\xff\xff\xf0"),
        "an array longer than the frame": raw_request(3, 1, b"\x00\xff\xff\xff"),
        "as many elements as there may be": states_filter(1_000_000),
        "an element too many": states_filter(1_000_001),
        "as many tags as there may be": tagged_fields(10_000),
        "a tag too many": tagged_fields(10_001),
        "a frame of negative size": b"\xff\xff\xff\xff",
        "a frame of no size": b"\0\0\0\0",
        "a frame that is too large": b"\x7f\xff\xff\xff",
    }.items():
        client = talk.client()
        client.send_bytes(data)
        answer = client.receive(ANSWER_LIMIT_S if len(data) > LARGE else 2)
        told = answer if not isinstance(answer, bytearray) else answer[4:6].hex()
        talk.note(label, getattr(told, "how", told))
        talk.ask(metadata, label=f"{label}, and then", on=client)


@scenario(DescribeClusterRequest)
def describe_cluster(talk: Talk, version: int) -> None:
    talk.ask(DescribeClusterRequest(include_cluster_authorized_operations=False), version, "plain")
    talk.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version, "with operations")
    if version >= 1:
        for kind in (1, 2, 0, 7):
            request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=kind)
            talk.ask(request, version, f"endpoint type {kind}")


@scenario(DescribeClusterRequest, 2)
def describe_cluster_with_fenced_brokers(talk: Talk, version: int) -> None:
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    talk.ask(request, version)


@scenario(ListConfigResourcesRequest)
def list_config_resources(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.ask(ListConfigResourcesRequest(), version, "all types")
    if version >= 1:
        for kinds in ([2], [4], [8], [16], [32], [4, 2], [2, 4, 2], [1], [0], [2, 99]):
            talk.ask(ListConfigResourcesRequest(resource_types=kinds), version, f"types {kinds}")


def coordinator(version: int, *keys: str, key_type: int = 0) -> FindCoordinatorRequest:
    """Return a request for one key up to version 3, for several from version 4."""
    if version < COORDINATORS_IN_A_LIST:
        return FindCoordinatorRequest(key=keys[0], key_type=key_type)
    return FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))


@scenario(FindCoordinatorRequest)
def find_coordinator(talk: Talk, version: int) -> None:
    talk.ask(coordinator(version, talk.name("g")), version, "a group")
    talk.ask(coordinator(version, ""), version, "a group of no name")
    if version >= 1:
        for kind in (1, 2, 3, -1):
            talk.ask(coordinator(version, talk.name("g"), key_type=kind), version, f"key type {kind}")
    if version >= COORDINATORS_IN_A_LIST:
        talk.ask(coordinator(version), version, "no keys")
        talk.ask(coordinator(version, talk.name("a"), talk.name("b"), talk.name("a")), version, "three keys")


def producer_id(
    transactional_id: str | None, *, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1
) -> InitProducerIdRequest:
    """Return a request for a producer id, without or with a transactional id."""
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


@scenario(InitProducerIdRequest)
def producer_ids(talk: Talk, version: int) -> None:
    talk.ask(producer_id(None), version, "the first")
    talk.ask(producer_id(None), version, "the second")
    talk.ask(producer_id(None, timeout_ms=-1), version, "a negative timeout")
    talk.ask(producer_id(None, timeout_ms=0), version, "no timeout")
    talk.ask(producer_id(""), version, "an empty transactional id")
    if version >= 3:
        talk.ask(producer_id(None, producer_id=5, epoch=3), version, "an id that it has already")
        talk.ask(producer_id(None, producer_id=5), version, "an id without an epoch")
        talk.ask(producer_id(None, epoch=5), version, "an epoch without an id")
    talk.ask(producer_id(talk.name("t")), version, "a transactional id")
    talk.ask(producer_id(talk.name("t"), timeout_ms=2**31 - 1), version, "a timeout that is too long")


@scenario(ListPartitionReassignmentsRequest)
def reassignments(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.ask(ListPartitionReassignmentsRequest(topics=None), version, "all")
    talk.ask(ListPartitionReassignmentsRequest(topics=[]), version, "none")
    for name, partition in ((topic, 0), (topic, 5), (talk.name("nowhere"), 0)):
        asked = ListPartitionReassignmentsTopics(name=name, partition_indexes=[partition])
        talk.ask(ListPartitionReassignmentsRequest(topics=[asked]), version, f"{name[8:]}, {partition}")


@scenario(DescribeLogDirsRequest)
def log_dirs(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    talk.fill("orders", batch(b"x" * 100))
    talk.ask(DescribeLogDirsRequest(topics=None), version, "all")
    talk.ask(DescribeLogDirsRequest(topics=[]), version, "none")
    for name, partitions in (
        (topic, [0, 1]),
        (topic, [0]),
        (topic, [7]),
        (topic, []),
        (talk.name("nowhere"), [0]),
    ):
        asked = DescribableLogDirTopic(topic=name, partitions=partitions)
        talk.ask(DescribeLogDirsRequest(topics=[asked]), version, f"{name[8:]}, {partitions}")


@scenario(AlterReplicaLogDirsRequest)
def moves_to_log_dirs(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    path = talk.tell(DescribeLogDirsRequest(topics=[])).results[0].log_dir

    def asked(path: str, *topics: tuple[str, list[int]]) -> AlterReplicaLogDir:
        named = [AlterReplicaLogDirTopic(name=name, partitions=numbers) for name, numbers in topics]
        return AlterReplicaLogDir(path=path, topics=named)

    for label, dirs in {
        "the directory": [asked(path, (topic, [0, 1]))],
        "an unknown partition": [asked(path, (topic, [7]), (talk.name("nowhere"), [0]))],
        "another directory": [asked("/nowhere", (topic, [0]))],
        "a relative path": [asked("nowhere", (topic, [0]))],
        "an unknown partition of another directory": [asked("/nowhere", (topic, [7]))],
        "two directories": [asked(path, (topic, [0])), asked("/nowhere", (topic, [1]))],
        "no topics": [asked(path)],
        "nothing": [],
    }.items():
        talk.ask(AlterReplicaLogDirsRequest(dirs=dirs), version, label)


@scenario(ElectLeadersRequest)
def elections(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    for election_type in (0, 1, 2) if version >= 1 else (0,):
        for label, partitions in {
            "a partition": [TopicPartitions(topic=topic, partitions=[0])],
            "unknown ones": [
                TopicPartitions(topic=topic, partitions=[7, 1]),
                TopicPartitions(topic=talk.name("nowhere"), partitions=[0]),
            ],
            "no partitions": [TopicPartitions(topic=topic, partitions=[])],
            "nothing": [],
            "all": None,
        }.items():
            request = ElectLeadersRequest(
                election_type=election_type, topic_partitions=partitions, timeout_ms=10_000
            )
            talk.ask(request, version, f"{label}, type {election_type}")


@scenario(AlterPartitionReassignmentsRequest)
def altered_reassignments(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)

    def asked(name: str, *partitions: tuple[int, list[int] | None]) -> ReassignableTopic:
        named = [ReassignablePartition(partition_index=number, replicas=ids) for number, ids in partitions]
        return ReassignableTopic(name=name, partitions=named)

    for label, topics in {
        "the same broker": [asked(topic, (0, [1]), (1, [1]))],
        "an unknown broker": [asked(topic, (0, [7]))],
        "a broker more": [asked(topic, (0, [1, 7]))],
        "a negative id": [asked(topic, (0, [-1]))],
        "twice the same broker": [asked(topic, (0, [1, 1]))],
        "no broker": [asked(topic, (0, []))],
        "an end": [asked(topic, (0, None))],
        "unknown partitions": [asked(topic, (7, [1])), asked(talk.name("nowhere"), (0, [1]))],
        "ends of unknown partitions": [asked(topic, (7, None)), asked(talk.name("nowhere"), (0, None))],
        "no partitions": [asked(topic)],
        "nothing": [],
    }.items():
        for allows in (True, False) if version >= 1 else (True,):
            request = AlterPartitionReassignmentsRequest(
                timeout_ms=10_000, allow_replication_factor_change=allows, topics=topics
            )
            talk.ask(request, version, label if allows else f"{label}, with the same replication factor")


@scenario(DescribeQuorumRequest)
def quorum(talk: Talk, version: int) -> None:
    def asked(name: str, *numbers: int) -> AskedTopic:
        return AskedTopic(
            topic_name=name, partitions=[AskedPartition(partition_index=number) for number in numbers]
        )

    for label, topics in {
        "the metadata": [asked("__cluster_metadata", 0)],
        "another partition": [asked("__cluster_metadata", 1)],
        "two partitions": [asked("__cluster_metadata", 0, 1)],
        "another topic": [asked(talk.topic("orders"), 0)],
        "two topics": [asked("__cluster_metadata", 0), asked(talk.name("orders"), 0)],
        "no partitions": [asked("__cluster_metadata")],
        "nothing": [],
    }.items():
        talk.ask(DescribeQuorumRequest(topics=topics), version, label)


@scenario(UpdateFeaturesRequest)
def updates_of_features(talk: Talk, version: int) -> None:
    def asked(feature: str, level: int, kind: int = 1) -> FeatureUpdateKey:
        if version == 0:
            return FeatureUpdateKey(feature=feature, max_version_level=level, allow_downgrade=kind > 1)
        return FeatureUpdateKey(feature=feature, max_version_level=level, upgrade_type=kind)

    for label, updates in {
        "the same level": [asked("transaction.version", 2)],
        "two features": [asked("transaction.version", 2), asked("group.version", 1)],
        "a level too high": [asked("transaction.version", 3)],
        "one of two too high": [asked("group.version", 1), asked("transaction.version", 3)],
        "a lower level as an upgrade": [asked("transaction.version", 1)],
        "the same level as a downgrade": [asked("transaction.version", 2, 2)],
        "a negative level": [asked("transaction.version", -1, 2)],
        "an unknown feature": [asked("nothing.version", 1)],
        "an unknown feature as a downgrade": [asked("nothing.version", 0, 2)],
        "the empty name": [asked("", 1)],
        "an unknown type": [asked("transaction.version", 2, 7)],
        "nothing": [],
    }.items():
        for validates in (False, True) if version >= 1 else (False,):
            request = UpdateFeaturesRequest(feature_updates=updates, validate_only=validates)
            talk.ask(request, version, f"{label}, validated" if validates else label)


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"x" * 32
    )


def deletion(name: str, mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


@scenario(AlterUserScramCredentialsRequest)
def alter_user_scram_credentials(talk: Talk, version: int) -> None:
    """Alter users one by one, because Kafka answers several in the order of a hash table."""
    for label, deletions, upsertions in (
        ("add", [], [upsertion("scram-a")]),
        ("replace", [], [upsertion("scram-a", iterations=16384)]),
        ("another mechanism", [], [upsertion("scram-a", 2)]),
        ("no name", [], [upsertion("")]),
        ("no such mechanism", [], [upsertion("scram-a", 3)]),
        ("too few iterations", [], [upsertion("scram-a", iterations=4095)]),
        ("too many iterations", [], [upsertion("scram-a", iterations=16385)]),
        ("added twice", [], [upsertion("scram-a"), upsertion("scram-a", 2)]),
        ("deleted and added", [deletion("scram-a")], [upsertion("scram-a")]),
        ("deleted twice", [deletion("scram-a"), deletion("scram-a", 2)], []),
        ("delete another", [deletion("scram-b")], []),
        ("delete another and add it", [deletion("scram-b")], [upsertion("scram-b")]),
        ("delete no mechanism", [deletion("scram-a", 0)], []),
        ("delete one", [deletion("scram-a")], []),
        ("delete the other", [deletion("scram-a", 2)], []),
        ("nothing", [], []),
    ):
        request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
        talk.ask(request, version, label)


@scenario(DescribeUserScramCredentialsRequest)
def describe_user_scram_credentials(talk: Talk, version: int) -> None:
    talk.ask(DescribeUserScramCredentialsRequest(users=None), version, "all of none")
    added = AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion("scram-c", 2, 8192)])
    talk.ask(added, label="add")
    for label, names in {
        "all": None,
        "none named": [],
        "one": ["scram-c"],
        "missing": ["scram-d"],
        "twice": ["scram-c", "scram-c"],
    }.items():
        users = None if names is None else [UserName(name=name) for name in names]
        talk.ask(DescribeUserScramCredentialsRequest(users=users), version, label)
    removed = AlterUserScramCredentialsRequest(deletions=[deletion("scram-c", 2)], upsertions=[])
    talk.ask(removed, label="delete")


@scenario(SaslHandshakeRequest)
def sasl_handshake_without_sasl(talk: Talk, version: int) -> None:
    for mechanism in ("PLAIN", "no such mechanism"):
        talk.ask(SaslHandshakeRequest(mechanism=mechanism), version, mechanism)


@scenario(SaslAuthenticateRequest)
def sasl_authenticate_without_sasl(talk: Talk, version: int) -> None:
    talk.ask(SaslAuthenticateRequest(auth_bytes=b"\0user\0password"), version)
