"""Compare our declarations and bytes with those of kafka-python.

kafka-python installs Kafka's message specifications as package data, with its own codec for them. Every struct is
compared with them field by field, and every version of every message, filled at random, must encode to the same bytes.

kafka-python 3.0.12 ships the specifications of Apache Kafka 4.3 for all of our messages. They differ from those in
kafka-clients-4.3.1.jar in only three fields, of versions that neither Kafka nor korvet supports (ListOffsets v0 and
OffsetCommit v1). NEWER has what Kafka 4.4 has added to them; test_oracle_java.py has bytes of each of these versions
that Kafka's own Java code wrote, and a few of other versions, because one codec could share a mistake with ours.
"""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest

from korvet.protocol.codec import decode
from korvet.protocol.connection import Api, Connection, Request
from korvet.protocol.requests import encode_request
from korvet.protocol.schema import ZERO_UUID, Field, parse_versions, schema_of, versions_of
from tests.protocol.samples import BODIES, MESSAGES, encoded, every_version, sample, version_id

REQUESTS = [cls for cls in BODIES if cls.__name__.endswith("Request")]
RESPONSES = [cls for cls in BODIES if cls.__name__.endswith("Response")]

SEEDS = range(5)

#: Versions below Kafka's validVersions, declared so that they can be decoded and refused. The specification still has
#: the versions of their fields.
REFUSED = {"ProduceRequest": {0, 1, 2}, "ProduceResponse": {0, 1, 2}}

#: Versions that Kafka 4.4 has added, by message. kafka-python does not know them.
NEWER = {
    "ApiVersionsRequest": 5,
    "ApiVersionsResponse": 5,
    "DeleteGroupsRequest": 3,
    "DeleteGroupsResponse": 3,
    "TxnOffsetCommitRequest": 6,
    "TxnOffsetCommitResponse": 6,
}
#: The fields by which these versions replace others, by the struct that has them and the name of the replaced field.
#: Kafka 4.4 also calls the GenerationId of TxnOffsetCommitRequest GenerationIdOrMemberEpoch.
REPLACED_FIELDS: dict[str, dict[str, list[dict[str, Any]]]] = {
    f"[]TxnOffsetCommit{kind}Topic": {
        "Name": [
            {"name": "Name", "type": "string", "versions": "0-5", "ignorable": True},
            {"name": "TopicId", "type": "uuid", "versions": "6+", "ignorable": True},
        ]
    }
    for kind in ("Request", "Response")
}
#: The fields of these versions, by the message or struct that has them, as Kafka 4.4 specifies them.
NEWER_FIELDS: dict[str, list[dict[str, Any]]] = {
    "ApiVersionsRequest": [
        {
            "name": "ClusterId",
            "type": "string",
            "versions": "5+",
            "nullableVersions": "5+",
            "default": "null",
            "ignorable": True,
        },
        {"name": "NodeId", "type": "int32", "versions": "5+", "default": -1, "ignorable": True},
    ],
    "[]DeletableGroupResult": [
        {
            "name": "ErrorMessage",
            "type": "string",
            "versions": "3+",
            "nullableVersions": "3+",
            "default": "null",
            "ignorable": True,
        }
    ],
}

#: Messages that kafka-python does not have. SPECIFICATIONS has those of Kafka 4.4, without their descriptions.
SPECIFICATIONS = Path(__file__).with_name("specifications")
UNKNOWN = {path.stem for path in SPECIFICATIONS.iterdir()}

ZEROS = {"bool": False, "string": "", "uuid": ZERO_UUID, "bytes": b"", "records": (), "float64": 0.0}


def specification(name: str) -> Any:
    source = SPECIFICATIONS if name in UNKNOWN else files("kafka.protocol.schemas.resources")
    text = source.joinpath(f"{name}.json").read_text()
    specified = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
    if name in NEWER:
        specified["validVersions"] = f"0-{NEWER[name]}"
        specified["fields"] += NEWER_FIELDS.get(name, [])
        for field in specified["fields"]:
            replaced = REPLACED_FIELDS.get(field["type"], {})
            field["fields"] = [
                new for old in field.get("fields", []) for new in replaced.get(old["name"], [old])
            ]
            field["fields"] += NEWER_FIELDS.get(field["type"], [])
    common = {struct["name"]: struct["fields"] for struct in specified.get("commonStructs", [])}
    return specified | {"fields": with_common_structs(specified["fields"], common)}


def with_common_structs(
    fields: list[dict[str, Any]], common: dict[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return fields with the fields of the structs that a specification has outside of its message."""
    resolved = []
    for field in fields:
        inner = common.get(field["type"].removeprefix("[]"), field.get("fields", []))
        resolved.append(field | {"fields": with_common_structs(inner, common)})
    return resolved


def known_to_kafka_python(classes: list[type[Any]]) -> list[tuple[type[Any], int]]:
    known = [cls for cls in classes if cls.__name__ not in UNKNOWN]
    return [(cls, version) for cls, version in every_version(known) if NEWER.get(cls.__name__) != version]


def snake_case(name: str) -> str:
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower()


def kafka_default(field: dict[str, Any]) -> object:
    """Return the default that a specification states or implies, in Python."""
    kafka_type, text = field["type"], str(field.get("default", ""))
    if text == "null":
        return None
    if kafka_type.startswith("[]"):
        return []
    if kafka_type.startswith(("int", "uint")):
        return int(text or "0", 0)
    if kafka_type == "bool":
        return text == "true"
    if kafka_type in ZEROS:
        return text or ZEROS[kafka_type]
    return None  # a struct in a tag: None means a struct with all its defaults


def described_by_kafka(fields: list[dict[str, Any]], versions: range) -> list[dict[str, object]]:
    """Return a specification's description of the fields that exist in any of `versions`."""
    described = []
    for field in fields:
        present = clipped(field["versions"], versions)
        if present:
            described.append(
                {
                    "name": snake_case(field["name"]),
                    "type": field["type"],
                    "versions": present,
                    "nullable": clipped(field.get("nullableVersions", "none"), versions) & present,
                    "default": kafka_default(field),
                    "tag": field.get("tag"),
                    "tagged": clipped(field.get("taggedVersions", "none"), versions),
                    "ignorable": field.get("ignorable", False),
                    "compact": field.get("flexibleVersions") != "none",
                    "fields": described_by_kafka(field.get("fields", []), versions),
                }
            )
    return described


def described_by_korvet(fields: tuple[Field, ...], versions: range) -> list[dict[str, object]]:
    """Return our declaration in the same form. A tag applies to all versions of its field, as in Kafka."""
    return [
        {
            "name": field.name,
            "type": ("[]" if field.is_array else "") + field.kafka_type,
            "versions": set(field.versions) & set(versions),
            "nullable": set(field.nullable) & set(field.versions) & set(versions),
            "default": field.default,
            "tag": field.tag,
            "tagged": set() if field.tag is None else set(field.versions) & set(versions),
            "ignorable": field.ignorable,
            "compact": field.compact,
            "fields": described_by_korvet(schema_of(field.struct).fields, versions) if field.struct else [],
        }
        for field in fields
        if not field.is_own
    ]


def clipped(text: str, versions: range) -> set[int]:
    return set(parse_versions(text)) & set(versions)


@pytest.mark.rows
@pytest.mark.parametrize("cls", MESSAGES, ids=version_id)
def test_every_field_is_declared_as_in_kafkas_specification(cls: type[Any]) -> None:
    versions = versions_of(cls)

    kafkas = described_by_kafka(specification(cls.__name__)["fields"], versions)

    assert kafkas == described_by_korvet(schema_of(cls).fields, versions)


@pytest.mark.rows
@pytest.mark.parametrize("cls", MESSAGES, ids=version_id)
def test_key_and_versions_are_those_of_kafkas_specification(cls: type[Any]) -> None:
    kafkas, schema = specification(cls.__name__), schema_of(cls)

    valid = set(parse_versions(kafkas["validVersions"])) | REFUSED.get(cls.__name__, set())

    assert kafkas.get("apiKey") == schema.key
    assert set(schema.versions) <= valid
    assert parse_versions(kafkas["flexibleVersions"]) == schema.flexible


def test_declared_versions_are_the_documented_ones() -> None:
    declared = {cls.__name__: versions_of(cls) for cls in BODIES}

    promised = {
        "ApiVersions": range(6),
        "Metadata": range(14),
        "Produce": range(14),
        "Fetch": range(4, 19),
        "ListOffsets": range(1, 12),
        "InitProducerId": range(6),
        "OffsetForLeaderEpoch": range(2, 5),
        "CreateTopics": range(2, 8),
        "DeleteTopics": range(1, 7),
        "FindCoordinator": range(7),
        "OffsetCommit": range(2, 11),
        "OffsetFetch": range(1, 11),
        "DescribeCluster": range(3),
        "JoinGroup": range(10),
        "SyncGroup": range(6),
        "Heartbeat": range(5),
        "LeaveGroup": range(6),
        "DescribeGroups": range(7),
        "ListGroups": range(6),
        "DeleteGroups": range(4),
        "OffsetDelete": range(1),
        "DescribeConfigs": range(1, 5),
        "AlterConfigs": range(3),
        "IncrementalAlterConfigs": range(2),
        "CreatePartitions": range(4),
        "DeleteRecords": range(3),
        "DescribeLogDirs": range(1, 6),
        "DescribeClientQuotas": range(2),
        "AlterClientQuotas": range(2),
        "DescribeUserScramCredentials": range(1),
        "AlterUserScramCredentials": range(1),
        "ListConfigResources": range(2),
        "DescribeTopicPartitions": range(1),
        "ListPartitionReassignments": range(1),
        "SaslHandshake": range(2),
        "SaslAuthenticate": range(3),
        "DescribeAcls": range(1, 4),
        "CreateAcls": range(1, 4),
        "DeleteAcls": range(1, 4),
        "AddPartitionsToTxn": range(6),
        "AddOffsetsToTxn": range(5),
        "EndTxn": range(6),
        "WriteTxnMarkers": range(1, 3),
        "TxnOffsetCommit": range(7),
        "DescribeProducers": range(1),
        "DescribeTransactions": range(1),
        "ListTransactions": range(3),
        "ElectLeaders": range(3),
        "DescribeQuorum": range(3),
        "AlterPartitionReassignments": range(2),
        "AlterReplicaLogDirs": range(1, 3),
        "UpdateFeatures": range(3),
        "ConsumerGroupHeartbeat": range(2),
        "ConsumerGroupDescribe": range(2),
        "ShareGroupHeartbeat": range(1, 2),
        "ShareGroupDescribe": range(1, 2),
        "ShareFetch": range(1, 3),
        "ShareAcknowledge": range(1, 3),
        "DescribeShareGroupOffsets": range(2),
        "AlterShareGroupOffsets": range(1),
        "DeleteShareGroupOffsets": range(1),
    }

    assert {
        f"{name}{kind}": versions for name, versions in promised.items() for kind in ("Request", "Response")
    } == declared


# --- Bytes -------------------------------------------------------------------------------------------------


def kafka_class(name: str) -> Any:
    """Return kafka-python's class of a message."""
    packages = (
        kafka.protocol.admin,
        kafka.protocol.consumer,
        kafka.protocol.metadata,
        kafka.protocol.producer,
        kafka.protocol.sasl,
    )
    return next(getattr(package, name) for package in packages if hasattr(package, name))


def in_kafka_python(message: Any, version: int, cls: Any) -> Any:
    """Return the same message as an object of kafka-python's classes.

    Only fields of that version are set. In most responses, bit sets of authorized operations have another name there,
    and are sets of bit numbers.
    """
    values = {}
    for field in schema_of(type(message)).fields:
        value = getattr(message, field.name)
        if version not in field.versions or field.is_own:
            continue
        if field.name.endswith("authorized_operations") and hasattr(cls, "authorized_operations"):
            values["authorized_operations"] = {bit for bit in range(32) if value >> bit & 1}
        else:
            values[field.name] = converted(value, field, version, cls)
    return cls(version=version, **values)


def converted(value: Any, field: Field, version: int, cls: Any) -> Any:
    if value is None:
        return None
    if field.kafka_type == "records":
        return b"".join(value)
    if field.struct is None:
        return value
    inner = getattr(cls, field.struct.__name__)
    if field.is_array:
        return [in_kafka_python(element, version, inner) for element in value]
    return in_kafka_python(value, version, inner)


@pytest.mark.rows
@pytest.mark.parametrize("bare", [False, True], ids=["full", "bare"])
@pytest.mark.parametrize("cls, version", known_to_kafka_python(BODIES), ids=version_id)
def test_encoded_messages_equal_those_of_kafka_python(cls: type[Any], version: int, bare: bool) -> None:
    for seed in SEEDS:
        message = sample(cls, version, Random(seed), bare=bare)

        theirs = in_kafka_python(message, version, kafka_class(cls.__name__))

        assert theirs.encode(version=version) == encoded(message, version)


@pytest.mark.rows
@pytest.mark.parametrize("cls, version", known_to_kafka_python(REQUESTS), ids=version_id)
def test_request_frames_equal_those_of_kafka_python(cls: type[Any], version: int) -> None:
    request = sample(cls, version, Random(0))
    theirs = in_kafka_python(request, version, kafka_class(cls.__name__))
    theirs.with_header(correlation_id=77, client_id="käfer")

    ours = b"".join(encode_request(request, version, 77, "käfer"))

    assert theirs.encode(header=True, framed=True) == ours


@pytest.mark.rows
@pytest.mark.parametrize("cls, version", known_to_kafka_python(RESPONSES), ids=version_id)
def test_response_frames_equal_those_of_kafka_python(cls: type[Any], version: int) -> None:
    response = sample(cls, version, Random(0))
    theirs = in_kafka_python(response, version, kafka_class(cls.__name__))
    theirs.with_header(correlation_id=77)
    key = schema_of(cls).key or 0
    asked = next(each for each in REQUESTS if schema_of(each).key == key)
    api = Api(key=key, name="", request=asked, response=cls, min_version=version, max_version=version)
    request = Request(api, version, 77, None, None, 0, response_version=version)

    ours = b"".join(Connection({}, max_frame_bytes=0).send(request, response))

    assert theirs.encode(header=True, framed=True) == ours


@pytest.mark.parametrize("bare", [False, True], ids=["full", "bare"])
@pytest.mark.parametrize("cls, version", every_version(MESSAGES), ids=version_id)
def test_messages_survive_a_round_trip(cls: type[Any], version: int, bare: bool) -> None:
    for seed in SEEDS:
        message = sample(cls, version, Random(seed), bare=bare)
        data = memoryview(encoded(message, version))

        assert (message, len(data)) == decode(cls, version, data)
