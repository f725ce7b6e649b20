"""Values as Confluent's own serializers write them, which register their schemas."""

from __future__ import annotations

from typing import Any

from attrs import define
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    header_schema_id_serializer,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.pipeline.registries import FakeRegistry

STRATEGIES = {
    "topic": topic_subject_name_strategy,
    "record": record_subject_name_strategy,
    "topic-record": topic_record_subject_name_strategy,
}
Headers = list[tuple[str, bytes]]


@define
class Serializers:
    """Serializers for one topic. With `in_headers`, they write schema ids to the records' headers."""

    registry: FakeRegistry
    topic: str = "orders"
    strategy: str = "topic"
    in_headers: bool = False
    is_key: bool = False

    def json(
        self, schema: str, value: Any, *, references: dict[str, str] | None = None
    ) -> tuple[bytes, Headers]:
        """Return a value of a JSON Schema, and its headers. `references` are subjects by names."""
        there = [SchemaReference(name, subject, 1) for name, subject in (references or {}).items()]
        return self._written(
            JSONSerializer(Schema(schema, "JSON", there), self._client(), conf=self._conf()), value
        )

    def avro(self, schema: str, value: Any) -> tuple[bytes, Headers]:
        return self._written(AvroSerializer(self._client(), schema, conf=self._conf()), value)

    def protobuf(self, message: Any) -> tuple[bytes, Headers]:
        """Return a message, and its headers. Files that it imports are registered as well."""
        return self._written(ProtobufSerializer(type(message), self._client(), conf=self._conf()), message)

    def _client(self) -> SchemaRegistryClient:
        return SchemaRegistryClient({"url": self.registry.url})

    def _conf(self) -> dict[str, Any]:
        conf: dict[str, Any] = {"subject.name.strategy": STRATEGIES[self.strategy]}
        if self.in_headers:
            conf["schema.id.serializer"] = header_schema_id_serializer
        return conf

    def _written(self, serializer: Any, value: Any) -> tuple[bytes, Headers]:
        headers: Headers = []
        place = MessageField.KEY if self.is_key else MessageField.VALUE
        written = serializer(value, SerializationContext(self.topic, place, headers))
        return written, headers
