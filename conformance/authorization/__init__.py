"""The table of authorization: the answers of every API to every principal, as recorded from Apache Kafka."""
