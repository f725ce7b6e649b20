"""korvet: a broker that speaks the Kafka protocol and keeps its data in Redis Streams, or in memory."""

__version__ = "0.1.0"
