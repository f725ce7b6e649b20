"""Flatten responses to tables of fields, without the values that differ between any two brokers (see `rules`).

The path of a field is its place: `topics[orders].partitions[0].error_code`. Array elements are identified by their
key, not their index. The order of an array is a separate field, `topics.(order)`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs
from attrs import define

from conformance import clock
from conformance.rules import BY_FIELD, Kind
from conformance.talk import Ended, Step, Talk
from korvet.protocol.crc32c import crc32c
from korvet.protocol.errors import ErrorCode
from korvet.protocol.record_batch import CRC_COVERS_FROM, RecordBatch, decode_records, parse_batches
from korvet.protocol.schema import ZERO_UUID, Field, schema_of

Fields = dict[str, str]

#: The sequence bits of offsets under the timestamp mapping.
SEQUENCE_BITS = 10
#: The scope of a scenario (`runner`), as it appears in names.
SCOPE = re.compile(r"s\d{4}v\d\d")
#: The port in a loopback address.
PORTS = re.compile(r"(127\.0\.0\.1):\d+")
#: The keys of array elements: the first of these fields that the element has and that is not empty.
KEYS = (
    "name", "topic", "group_id", "resource_name", "key", "partition_index", "partition", "index", "api_key",
    "topic_id", "broker_id", "node_id", "member_id", "log_dir", "transactional_id", "producer_id", "entity_type",
    "topic_name", "partition_id", "replica_id", "feature",
)  # fmt: skip
TOPIC_FIELDS = ("topic", "name", "topic_id")
PARTITION_FIELDS = ("partition_index", "partition", "index")
ERROR_FIELDS = ("error_code", "topic_config_error_code", "partition_error_code")
#: The field of the whole response, if there is none.
ANSWER = "(answer)"
#: The suffix of the path of the number of fetched records. If it differs, the records' fields are not comparable.
RECORDS = ".(records)"
#: The suffix of the path of an array's order.
ORDER = ".(order)"
#: The text for any text, time or size that is present; and the texts for values that are not.
SOME, NOTHING = "some", ("None", "''")
LONGEST = 120  # characters of a value


@define
class Reader:
    """Reader of one conversation's responses, in order."""

    talk: Talk
    as_records: bool  # compare the fetched records, not their batches
    _api: str = ""
    _version: int = 0
    _named: dict[str, dict[object, str]] = attrs.field(factory=lambda: defaultdict(dict))

    def __attrs_post_init__(self) -> None:
        # Number members in the order in which they got their ids, not in the order of the leader's list.
        for step in self.talk.steps:
            if member_id := getattr(step.answer, "member_id", ""):
                self._name(member_id, "member_id")

    def fields(self, step: Step) -> Fields:
        """Return the fields of one response; if there is none, `(answer)` alone."""
        if isinstance(step.answer, Ended):
            return {ANSWER: step.answer.how}
        self._api, self._version = step.api, step.version
        return dict(self._struct(step.answer, "", "", {}))

    def _struct(
        self, struct: Any, path: str, name: str, around: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        fields = [each for each in schema_of(type(struct)).fields if self._version in each.versions]
        around = {**around, **_place(struct, fields)}
        for each in fields:
            value = getattr(struct, each.name)
            inner_path, inner_name = _joined(path, each.name), _joined(name, each.name)
            if each.kafka_type == "records":
                yield from self._records(value, inner_path, inner_name, around)
            elif each.is_array:
                yield from self._array(each, value, inner_path, inner_name, around)
            elif each.struct is not None and value is not None:
                yield from self._struct(value, inner_path, inner_name, around)
            else:
                yield inner_path, self._value(value, each.name, inner_name, around)

    def _array(
        self, field: Field, values: Sequence[Any] | None, path: str, name: str, around: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        yield path, "null" if values is None else "an array"
        if values is None:
            return
        if field.struct is None:
            shown = [self._value(value, "", name, around) for value in values]
            is_unordered = (self._api, name, True) in BY_FIELD
            yield path, "[" + ", ".join(sorted(shown) if is_unordered else shown) + "]"
            return
        keys: list[str] = []
        for value in values:
            key = self._key(value, name, around)
            if self._of_others(key):
                continue
            keys.append(key if key not in keys else f"{key}, again")
            yield f"{path}[{keys[-1]}]", "there"
            yield from self._struct(value, f"{path}[{keys[-1]}]", name, around)
        rule = BY_FIELD.get((self._api, name, True))
        if rule is None:
            yield f"{path}{ORDER}", ", ".join(keys)

    def _key(self, value: Any, name: str, around: Mapping[str, Any]) -> str:
        for key in KEYS:
            found = getattr(value, key, None)
            if found not in (None, "", ZERO_UUID) and any(
                each.name == key and self._version in each.versions for each in schema_of(type(value)).fields
            ):
                path = self._value(found, key, _joined(name, key), around)
                return path.removeprefix("the id of ")  # one path, whichever way a version names topics
        return "nameless"

    def _of_others(self, key: str) -> bool:
        """Return True if an element belongs to another scenario, in a response that lists everything."""
        return SCOPE.search(key) is not None

    def _value(self, value: Any, short: str, name: str, around: Mapping[str, Any]) -> str:
        if short in ERROR_FIELDS:
            return ErrorCode(value).name
        rule = BY_FIELD.get((self._api, name, False))
        if rule is not None:
            return self._ruled(rule.kind, value, short, around)
        if short == "timestamp":
            return clock.formatted(value)
        if isinstance(value, str):
            return _short(value.replace(self.talk.scope + "-", ""))
        if isinstance(value, bytes | bytearray | memoryview):
            return _short(bytes(value).replace(self.talk.scope.encode() + b"-", b"").hex() or "no bytes")
        return _short(str(value))

    def _ruled(self, kind: Kind, value: Any, short: str, around: Mapping[str, Any]) -> str:
        if kind is Kind.OFFSET:
            return str(self._number(value, around))
        if kind is Kind.NAMED:
            return self._name(value, short)
        if kind is Kind.PORTS and value is not None:
            return _short(PORTS.sub(r"\1:PORT", value.replace(self.talk.scope + "-", "")))
        if value is None or value in (-1, 0, "", b""):
            return repr(value) if isinstance(value, str) else str(value)
        return SOME

    def _name(self, value: Any, short: str) -> str:
        """Return a name for an id, such as `member 1`; the same id always gets the same name."""
        if value in (None, "", 0, -1, ZERO_UUID):
            return repr(str(value)) if isinstance(value, str) else str(value)
        if isinstance(value, UUID):
            for name, topic_id in self.talk.topic_ids.items():
                if topic_id == value:
                    return f"the id of {name.removeprefix(self.talk.scope + '-')}"
        sort = "member" if short in ("member_id", "leader") else short.removesuffix("_id").replace("_", " ")
        named = self._named[sort]
        return named.setdefault(value, f"{sort} {len(named) + 1}")

    def _number(self, offset: int, around: Mapping[str, Any]) -> int:
        """Return the number of the record at an offset, on brokers whose offsets follow the clock."""
        if self.talk.peer.dense:
            return offset
        topic, partition = around.get("topic"), around.get("partition", 0)
        for name, topic_id in self.talk.topic_ids.items():
            if topic == topic_id:
                topic = name
        known = sorted(self.talk.offsets.get((str(topic), partition), []))
        if offset in known:
            return known.index(offset)
        # The log starts at the time of the topic's creation, with sequence 0: before the first record.
        if 0 <= offset < min(known, default=2**63) and offset % (1 << SEQUENCE_BITS) == 0:
            return 0
        return known.index(offset - 1) + 1 if offset - 1 in known else offset  # the end offset

    # Records

    def _records(
        self, value: Any, path: str, name: str, around: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        if value is None:
            yield path, "None"
            return
        batches = parse_batches(b"".join(value), truncated_end_ok=True)
        records = [record for batch in batches for record in self._decoded(batch, name, around)]
        yield f"{path}{RECORDS}", _counted(records)
        for number, record in enumerate(records):
            yield f"{path}.records[{number}]", record
        if not self.as_records:
            for number, batch in enumerate(batches):
                yield f"{path}[{number}]", self._batch(batch, name, around)

    def _batch(self, batch: RecordBatch, name: str, around: Mapping[str, Any]) -> str:
        header = (
            "partition_leader_epoch",
            "magic",
            "attributes",
            "last_offset_delta",
            "record_count",
            "size",
        )
        parts = [f"base_offset {self._value(batch.base_offset, '', f'{name}.base_offset', around)}"]
        parts += [f"{each} {getattr(batch, each)}" for each in header]
        parts.append(f"crc {'right' if crc32c(batch.buffer[CRC_COVERS_FROM:]) == batch.crc else 'wrong'}")
        if batch.is_idempotent:
            producer = self._name(batch.producer_id, "producer_id")
            parts.append(f"{producer} epoch {batch.producer_epoch} sequence {batch.base_sequence}")
        if not batch.is_log_append_time and not batch.is_control:
            parts.append(
                f"from {clock.formatted(batch.base_timestamp)} to {clock.formatted(batch.max_timestamp)}"
            )
        return ", ".join(parts)

    def _decoded(self, batch: RecordBatch, name: str, around: Mapping[str, Any]) -> Iterator[str]:
        for delta, timestamp, key, value, headers in decode_records(batch):
            offset = self._value(batch.base_offset + delta, "", f"{name}.offset", around)
            is_of_broker = batch.is_log_append_time or batch.is_control
            when = "append time" if is_of_broker else clock.formatted(timestamp)
            yield f"offset {offset}, {when}, {_bytes(key)}: {_bytes(value)}, {headers!r}"


def _counted(records: Sequence[str]) -> str:
    if not records:
        return "no records"
    first, last = (record.partition(",")[0] for record in (records[0], records[-1]))
    return f"{len(records)} from {first} to {last}"


def _place(struct: Any, fields: Sequence[Field]) -> dict[str, Any]:
    """Return the topic and partition that a struct is about, if it has them."""
    here = {each.name for each in fields}
    place: dict[str, Any] = {}
    for key in TOPIC_FIELDS:
        if key in here and getattr(struct, key) not in (None, "", ZERO_UUID):
            place["topic"] = getattr(struct, key)
            break
    for key in PARTITION_FIELDS:
        if key in here:
            place["partition"] = getattr(struct, key)
    return place


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(text: str) -> str:
    shown = text if text and text.strip() == text else repr(text)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}… ({len(shown)} characters)"


def _bytes(value: Any) -> str:
    return (
        "null"
        if value is None
        else repr(bytes(value))[1:]
        if len(value) <= LONGEST
        else f"{len(value)} bytes"
    )
