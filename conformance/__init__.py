"""Compare korvet's responses with those of Apache Kafka: `make conformance`."""
