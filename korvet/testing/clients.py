"""Clients of three libraries that are connected to a test's broker. The libraries are optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attrs import frozen

if TYPE_CHECKING:
    import confluent_kafka
    import confluent_kafka.admin


class ClientMissing(ImportError):  # noqa: N818  names the condition
    """A client library is not installed."""


def library(module: str, package: str) -> Any:
    """Import a client library. Raises ClientMissing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise ClientMissing(f"{package} is not installed: pip install {package}", name=module) from None


@frozen
class Clients:
    """The base of the libraries. `closing` closes the clients that were made, when the broker ends."""

    bootstrap_servers: str
    new_name: Callable[[str], str]
    closing: ExitStack


@frozen
class Confluent(Clients):
    """confluent-kafka. `settings` are librdkafka's, under their names with dots."""

    def producer(self, settings: Mapping[str, Any] | None = None) -> confluent_kafka.Producer:
        """Return a producer. Flush it before records are expected."""
        made: confluent_kafka.Producer = self._library().Producer(self._settings(settings))
        self.closing.callback(end_producer, made)
        return made

    def consumer(self, *topics: str, settings: Mapping[str, Any] | None = None) -> confluent_kafka.Consumer:
        """Return a consumer of these topics from their beginning, by default in a new group."""
        defaults = {"group.id": self.new_name("group"), "auto.offset.reset": "earliest"}
        made: confluent_kafka.Consumer = self._library().Consumer(self._settings(defaults, settings))
        self.closing.callback(made.close)
        if topics:
            made.subscribe([*topics])
        return made

    def admin(self, settings: Mapping[str, Any] | None = None) -> confluent_kafka.admin.AdminClient:
        """Return an admin client."""
        admin = library("confluent_kafka.admin", "confluent-kafka")
        made: confluent_kafka.admin.AdminClient = admin.AdminClient(self._settings(settings))
        return made

    def _library(self) -> Any:
        return library("confluent_kafka", "confluent-kafka")

    def _settings(self, *given: Mapping[str, Any] | None) -> dict[str, Any]:
        settings = {"bootstrap.servers": self.bootstrap_servers}
        for each in given:
            settings |= each or {}
        return settings


def end_producer(producer: confluent_kafka.Producer) -> None:
    """Discard the records that are not delivered, and end the producer's threads."""
    # Older versions than 2.13 have no `close`, and end the threads when the object is deleted.
    close = getattr(producer, "close", None)
    if close is not None:
        with suppress(RuntimeError):  # the test has closed it
            producer.purge()
        close()


@frozen
class KafkaPython(Clients):
    """kafka-python. Settings are the arguments of its classes."""

    def producer(self, **settings: Any) -> Any:
        """Return a KafkaProducer."""
        return self._opened("KafkaProducer", (), settings)

    def consumer(self, *topics: str, **settings: Any) -> Any:
        """Return a KafkaConsumer of these topics from their beginning, by default in a new group."""
        defaults = {"group_id": self.new_name("group"), "auto_offset_reset": "earliest"}
        return self._opened("KafkaConsumer", topics, defaults | settings)

    def admin(self, **settings: Any) -> Any:
        """Return a KafkaAdminClient."""
        return self._opened("KafkaAdminClient", (), settings)

    def _opened(self, name: str, topics: tuple[str, ...], settings: Mapping[str, Any]) -> Any:
        make = getattr(library("kafka", "kafka-python"), name)
        made = make(*topics, **{"bootstrap_servers": self.bootstrap_servers, **settings})
        self.closing.callback(made.close)
        return made


@frozen
class AioKafka(Clients):
    """aiokafka. Settings are the arguments of its classes; each client is a context manager for `async with`."""

    def producer(self, **settings: Any) -> Any:
        """Return an AIOKafkaProducer."""
        return self._made("AIOKafkaProducer", (), settings)

    def consumer(self, *topics: str, **settings: Any) -> Any:
        """Return an AIOKafkaConsumer of these topics from their beginning, by default in a new group."""
        defaults = {"group_id": self.new_name("group"), "auto_offset_reset": "earliest"}
        return self._made("AIOKafkaConsumer", topics, defaults | settings)

    def _made(self, name: str, topics: tuple[str, ...], settings: Mapping[str, Any]) -> Any:
        make = getattr(library("aiokafka", "aiokafka"), name)
        return make(*topics, **{"bootstrap_servers": self.bootstrap_servers, **settings})
