"""Kafka's messages: one module per API with its request and response. The API's handler module has the same name.

Field names, types and versions are those of Apache Kafka 4.4. Its specifications (clients/src/main/resources/
common/message) document the fields. Only the versions that korvet supports are declared.
"""
