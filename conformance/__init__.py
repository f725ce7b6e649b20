"""Whether korvet answers as Apache Kafka does, asked of Apache Kafka itself: `make conformance`."""
