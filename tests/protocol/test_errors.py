from __future__ import annotations

import pickle
from typing import Any, cast

import kafka.errors
import pytest

from korvet.protocol.errors import (
    ERRORS,
    CorruptMessage,
    ErrorCode,
    KafkaError,
    NetworkException,
    OffsetOutOfRange,
    ProtocolError,
    UnknownServerError,
    UnknownTopicOrPartition,
    error_for,
)

#: kafka-python's names that differ from Kafka's (org.apache.kafka.common.protocol.Errors).
OTHER_NAMES = {
    "UNKNOWN": "UNKNOWN_SERVER_ERROR",
    "NO_ERROR": "NONE",
    "NOT_LEADER_FOR_PARTITION": "NOT_LEADER_OR_FOLLOWER",
    "MESSAGE_SIZE_TOO_LARGE": "MESSAGE_TOO_LARGE",
    "INVALID_TOPIC": "INVALID_TOPIC_EXCEPTION",
    "INVALID_REPLICATION_ASSIGNMENT": "INVALID_REPLICA_ASSIGNMENT",
}

#: Errors that kafka-python 3.0 lacks.
NEWER = {
    "INVALID_REGULAR_EXPRESSION": 128,
    "REBOOTSTRAP_REQUIRED": 129,
    "STREAMS_INVALID_TOPOLOGY": 130,
    "STREAMS_INVALID_TOPOLOGY_EPOCH": 131,
    "STREAMS_TOPOLOGY_FENCED": 132,
    "SHARE_SESSION_LIMIT_REACHED": 133,
    "GROUP_DELETION_FAILED": 134,
    "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED": 135,
    "CONTROLLER_ID_NOT_REGISTERED": 136,
}

#: Codes of Java's RetriableException in kafka-clients 4.4.0. kafka-python differs in a few (CORRUPT_MESSAGE).
RETRIABLE = {
    *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89),
    *(100, 103, 106, 122, 123, 133),
}


def test_codes_and_names_are_those_of_kafka() -> None:
    theirs = {
        OTHER_NAMES.get(error.message, error.message): error.errno
        for error in cast(dict[str, Any], vars(kafka.errors)).values()
        if isinstance(getattr(error, "errno", None), int)
    }

    assert theirs | NEWER == {code.name: code.value for code in ErrorCode}


def test_error_codes_are_contiguous_from_minus_one() -> None:
    assert list(range(-1, 137)) == sorted(ErrorCode)


def test_every_error_code_has_one_exception_class() -> None:
    expected = {code: "".join(map(str.capitalize, code.name.split("_"))) for code in ErrorCode if code}

    assert expected == {code: error.__name__ for code, error in ERRORS.items()}
    ours = [error for error in KafkaError.__subclasses__() if error.__module__ == KafkaError.__module__]
    assert len(expected) == len(ours)


def test_retriable_errors_are_those_of_the_java_client() -> None:
    assert RETRIABLE == {code for code, error in ERRORS.items() if error.retriable}


def test_error_message_defaults_to_that_of_its_class() -> None:
    assert OffsetOutOfRange.message == OffsetOutOfRange().message == str(OffsetOutOfRange())

    better = OffsetOutOfRange("offset 7 is above 5")

    assert ("offset 7 is above 5",) * 2 == (better.message, str(better))
    assert OffsetOutOfRange.message != better.message


def test_error_messages_are_unique_sentences() -> None:
    messages = [error.message for error in ERRORS.values()]

    assert len(set(messages)) == len(messages)
    assert all(message.endswith(".") for message in messages)


@pytest.mark.parametrize("code", [code for code in ErrorCode if code], ids=lambda code: code.name)
def test_error_for_returns_the_exception_of_the_code(code: ErrorCode) -> None:
    error = error_for(int(code))

    assert code is error.error_code
    assert ERRORS[code] is type(error)


def test_error_for_an_unknown_code_is_unknown_server_error_with_the_code() -> None:
    error = error_for(9999)

    assert UnknownServerError is type(error)
    assert "9999" in error.message


def test_error_for_refuses_code_zero() -> None:
    with pytest.raises(ValueError, match="not an error"):
        error_for(0)


def test_protocol_error_has_no_error_code() -> None:
    assert not issubclass(ProtocolError, KafkaError)
    assert not hasattr(ProtocolError("x"), "error_code")


def test_errors_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(CorruptMessage("bad checksum")))

    assert (CorruptMessage, "bad checksum") == (type(error), error.message)


def test_errors_made_from_the_table_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(error_for(ErrorCode.STREAMS_TOPOLOGY_FENCED)))

    assert ErrorCode.STREAMS_TOPOLOGY_FENCED is error.error_code
    assert ERRORS[ErrorCode.STREAMS_TOPOLOGY_FENCED] is type(error)


def test_subclass_of_an_error_has_its_message_and_may_differ_in_retriable() -> None:
    class LostError(NetworkException):
        pass

    class RefusedError(KafkaError):
        error_code = ErrorCode.NETWORK_EXCEPTION
        retriable = False

    assert NetworkException.message == LostError.message == RefusedError.message
    assert (True, False) == (LostError.retriable, RefusedError.retriable)


def test_subclass_with_a_code_keeps_a_message_of_its_own() -> None:
    class BusyError(KafkaError):
        error_code = ErrorCode.NETWORK_EXCEPTION
        message = "The broker is busy."

    assert "The broker is busy." == str(BusyError())
    assert BusyError.retriable


def test_error_is_caught_as_a_kafka_error_with_its_code() -> None:
    with pytest.raises(KafkaError) as caught:
        raise UnknownTopicOrPartition

    assert (3, True) == (caught.value.error_code, caught.value.retriable)
