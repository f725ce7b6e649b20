"""Administration of topics with two libraries, through one interface; each is also the library's ordinary client."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from attrs import frozen
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from kafka.admin import ConfigResource as KafkaPythonResource
from kafka.admin import NewPartitions as KafkaPythonPartitions
from kafka.structs import TopicPartition

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S, AdminClient
from tests.clients.kafka_python import KafkaPython

# Name -> operation and value; SET, DELETE, APPEND, SUBTRACT.
Changes = Mapping[str, tuple[str, str | None]]


@frozen
class Told:
    """A setting as described by the broker."""

    value: str | None
    source: str  # DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG
    read_only: bool
    sensitive: bool
    synonyms: tuple[str, ...]


class Administrator(AdminClient):
    """The administration that both libraries support. Refusals raise, with the broker's message if it sent one."""

    @abstractmethod
    def settings(self, name: str, *, kind: str = "TOPIC") -> dict[str, Told]:
        """Return every setting of a topic, or a BROKER."""

    @abstractmethod
    def change(
        self, name: str, changes: Changes, *, kind: str = "TOPIC", validate_only: bool = False
    ) -> None:
        """Change some settings (IncrementalAlterConfigs)."""

    @abstractmethod
    def replace(self, topic: str, settings: Mapping[str, str]) -> None:
        """Replace all settings of a topic (AlterConfigs)."""

    @abstractmethod
    def add_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        """Increase the number of a topic's partitions to `count`."""

    @abstractmethod
    def delete_records(self, topic: str, offset: int, *, partition: int = 0) -> int:
        """Delete records below an offset. Return the new start offset."""


class ConfluentAdministrator(Confluent, Administrator):
    def settings(self, name: str, *, kind: str = "TOPIC") -> dict[str, Told]:
        admin, resource = self._admin(), ConfigResource(ResourceType[kind], name)
        entries = admin.describe_configs([resource], request_timeout=LIMIT_S)[resource].result(LIMIT_S)
        sources = {
            1: "DYNAMIC_TOPIC_CONFIG",
            2: "DYNAMIC_BROKER_CONFIG",
            3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
            4: "STATIC_BROKER_CONFIG",
            5: "DEFAULT_CONFIG",
        }
        return {
            key: Told(
                entry.value,
                sources[entry.source],
                bool(entry.is_read_only),
                bool(entry.is_sensitive),
                tuple(entry.synonyms),
            )
            for key, entry in entries.items()
        }

    def change(
        self, name: str, changes: Changes, *, kind: str = "TOPIC", validate_only: bool = False
    ) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType[operation])
            for key, (operation, value) in changes.items()
        ]
        admin, resource = self._admin(), ConfigResource(ResourceType[kind], name, incremental_configs=entries)
        answers = admin.incremental_alter_configs(
            [resource], validate_only=validate_only, request_timeout=LIMIT_S
        )
        answers[resource].result(LIMIT_S)

    def replace(self, topic: str, settings: Mapping[str, str]) -> None:
        admin, resource = self._admin(), ConfigResource(ResourceType.TOPIC, topic, set_config=dict(settings))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the test covers the deprecated API
            answers = admin.alter_configs([resource], request_timeout=LIMIT_S)
        answers[resource].result(LIMIT_S)

    def add_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        admin = self._admin()
        answers = admin.create_partitions(
            [NewPartitions(topic, count)], operation_timeout=LIMIT_S, validate_only=validate_only
        )
        answers[topic].result(LIMIT_S)

    def delete_records(self, topic: str, offset: int, *, partition: int = 0) -> int:
        admin, position = self._admin(), ConfluentPartition(topic, partition, offset)
        answers = admin.delete_records([position], operation_timeout=LIMIT_S)
        low_watermark: int = answers[position].result(LIMIT_S).low_watermark
        return low_watermark


class KafkaPythonAdministrator(KafkaPython, Administrator):
    def settings(self, name: str, *, kind: str = "TOPIC") -> dict[str, Told]:
        with self._admin() as admin:
            described = admin.describe_configs(
                [KafkaPythonResource(kind, name)], include_synonyms=True, config_filter="all"
            )
        return {
            key: Told(
                entry["value"],
                entry["config_source"],
                entry["read_only"],
                entry["is_sensitive"],
                tuple(synonym["name"] for synonym in entry["synonyms"]),
            )
            for key, entry in described[kind.lower()][name].items()
        }

    def change(
        self, name: str, changes: Changes, *, kind: str = "TOPIC", validate_only: bool = False
    ) -> None:
        self._alter(name, dict(changes), kind=kind, validate_only=validate_only, incremental=True)

    def replace(self, topic: str, settings: Mapping[str, str]) -> None:
        with self._admin() as admin:
            request = admin._alter_configs_request(
                [KafkaPythonResource("TOPIC", topic, dict(settings))], incremental=False
            )
            # The library's own method would add the existing settings.
            (answer,) = admin._manager.run(admin._manager.send, request).responses
        if answer.error_code:
            raise ValueError(f"error {answer.error_code}: {answer.error_message}")

    def _alter(self, name: str, configs: dict[str, Any], *, kind: str, **options: Any) -> None:
        with self._admin() as admin:
            answers = admin.alter_configs(
                [KafkaPythonResource(kind, name, configs)], raise_on_unknown=False, **options
            )
        if (answer := answers[kind.lower()][name]) != "OK":
            raise ValueError(answer)

    def add_partitions(self, topic: str, count: int, *, validate_only: bool = False) -> None:
        with self._admin() as admin:
            admin.create_partitions({topic: KafkaPythonPartitions(count)}, validate_only=validate_only)

    def delete_records(self, topic: str, offset: int, *, partition: int = 0) -> int:
        tp = TopicPartition(topic, partition)
        with self._admin() as admin:
            low_watermark: int = admin.delete_records({tp: offset})[tp]["low_watermark"]
        return low_watermark

    # --- Methods of this library only -------------------------------------------------------------------

    def sizes(self, topic: str) -> tuple[str, dict[int, int]]:
        """Return the log directory of a topic on one broker, and the bytes of its partitions."""
        with self._admin() as admin:
            brokers = admin.describe_log_dirs([topic])
        name, sizes = "", {}
        for broker in brokers:
            (directory,) = broker["log_dirs"]
            name = directory["log_dir"]
            for described in directory["topics"]:
                for each in described["partitions"]:
                    assert each["partition_index"] not in sizes  # one broker leads it
                    sizes[each["partition_index"]] = each["partition_size"]
        return name, sizes

    def partition_pages(self, topic: str, limit: int) -> list[list[int]]:
        """Return the topic's partitions, one page at a time."""
        pages: list[list[int]] = []
        cursor = None
        with self._admin() as admin:
            while True:
                answer = admin.describe_topic_partitions([topic], limit, cursor)
                (described,) = answer["topics"]
                pages.append([each["partition_index"] for each in described["partitions"]])
                cursor = answer["next_cursor"]
                if cursor is None:
                    return pages

    def reassignments(self) -> dict[Any, Any]:
        """Return the partitions that are being reassigned."""
        with self._admin() as admin:
            found: dict[Any, Any] = admin.list_partition_reassignments()
        return found


ADMINISTRATORS: tuple[type[Administrator], ...] = (ConfluentAdministrator, KafkaPythonAdministrator)
