"""Kafka's messages: one module per API, request and response together, named as its handler is.

Field names, types and versions are those of Apache Kafka's specifications, 4.3; what a field means is said
there (clients/src/main/resources/common/message). Only the versions that korvet speaks are declared.
"""
