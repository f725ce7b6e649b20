"""The names of spans and of their attributes. docs/tracing.md is generated from them.

Attributes that OpenTelemetry's semantic conventions define have their names from there (messaging, client, errors).
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
CLIENT_ID: Final = "messaging.client.id"
TOPIC: Final = "messaging.destination.name"
GROUP: Final = "messaging.consumer.group.name"
RECORDS: Final = "messaging.batch.message_count"
ADDRESS: Final = "client.address"
PORT: Final = "client.port"
PRINCIPAL: Final = "user.name"
VERSION: Final = "korvet.api.version"
LISTENER: Final = "korvet.listener"
REQUEST_BYTES: Final = "korvet.request.size"
RESPONSE_BYTES: Final = "korvet.response.size"
PARTITIONS: Final = "korvet.storage.partitions"
ERROR: Final = "error.type"

#: Of a span for a request, whose name is that of its API.
REQUEST_ATTRIBUTES: Final = {
    SYSTEM: "`kafka`",
    OPERATION: "the API, such as `Produce`",
    VERSION: "the version of the API",
    CLIENT_ID: "the client id, if the request has one",
    ADDRESS: "the address of the client",
    PORT: "the client's port, which identifies the connection",
    LISTENER: "the name of the listener",
    PRINCIPAL: "the principal, if the client is authenticated",
    TOPIC: "the topic, if the request is a Produce or Fetch of one topic by name",
    GROUP: "the consumer group, if the request names one",
    RECORDS: "the number of records, of a Produce",
    REQUEST_BYTES: "bytes of the request",
    RESPONSE_BYTES: "bytes of the response, if it was sent",
    ERROR: "Kafka's name of the first error code in the response; `unanswered` if no response was sent to a request"
    " that has one",
}
#: Of a span for a call of the storage, whose name is `storage` and the method's.
STORAGE_ATTRIBUTES: Final = {
    PARTITIONS: "the number of partitions, of calls for several ones",
    ERROR: "Kafka's name of the error, of the call or of its first partition that has one",
}
