"""Kafka's error codes, and an exception for each of them.

The table `ErrorCode` is complete. The classes below are those which korvet names; the others are made from the table.

A handler raises an error, and the function that builds the response for a partition (topic, group) catches `KafkaError`
and sets its `error_code`. Codes, names and retriability are those of Apache Kafka 4.4
(org.apache.kafka.common.protocol.Errors); the messages are korvet's.

`ProtocolError` is not a Kafka error and has no code, since a client that sent such bytes could not read a response.
"""

# ruff: noqa: N818  the names are Kafka's

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ProtocolError(Exception):
    """The received bytes are not a Kafka message. The connection is closed."""


RETRIABLE = True


class ErrorCode(IntEnum):
    """The values of `error_code` fields: code, default message, and RETRIABLE if a retry may succeed."""

    _value_: int
    message: str
    retriable: bool

    # The parameters are the columns of the table.
    def __new__(cls, code: int, message: str = "", retriable: bool = False) -> Self:  # noqa: FBT001, FBT002
        self = int.__new__(cls, code)
        self._value_ = code
        self.message = message
        self.retriable = retriable
        return self

    # fmt: off
    UNKNOWN_SERVER_ERROR = -1, "The broker met an error it did not expect."
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1, "The offset lies outside the partition's log."
    CORRUPT_MESSAGE = 2, "The record batch is damaged: checksum, length or structure do not hold.", RETRIABLE
    UNKNOWN_TOPIC_OR_PARTITION = 3, "This broker has no such topic or partition.", RETRIABLE
    INVALID_FETCH_SIZE = 4, "The fetch size is invalid."
    LEADER_NOT_AVAILABLE = 5, "The partition has no leader at the moment.", RETRIABLE
    NOT_LEADER_OR_FOLLOWER = 6, "This broker is neither the partition's leader nor one of its followers.", RETRIABLE
    REQUEST_TIMED_OUT = 7, "The request was not done within its time limit.", RETRIABLE
    BROKER_NOT_AVAILABLE = 8, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, "The requested replica is not available.", RETRIABLE
    MESSAGE_TOO_LARGE = 10, "The record batch is larger than the broker accepts."
    STALE_CONTROLLER_EPOCH = 11, "The controller has moved to another broker."
    OFFSET_METADATA_TOO_LARGE = 12, "The metadata committed beside an offset is too long."
    NETWORK_EXCEPTION = 13, "The connection was lost before the answer arrived.", RETRIABLE
    COORDINATOR_LOAD_IN_PROGRESS = 14, "The coordinator is still loading its state.", RETRIABLE
    COORDINATOR_NOT_AVAILABLE = 15, "The coordinator is not available.", RETRIABLE
    NOT_COORDINATOR = 16, "This broker is not the coordinator of that group or transactional id.", RETRIABLE
    INVALID_TOPIC_EXCEPTION = 17, "The topic's name is invalid, or the operation is not allowed on it."
    RECORD_LIST_TOO_LARGE = 18, "The record batch is larger than a log segment may be."
    NOT_ENOUGH_REPLICAS = 19, "Fewer replicas are in sync than the topic demands; nothing was written.", RETRIABLE
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, "The records were written, but not to as many replicas as the topic demands.", RETRIABLE  # noqa: E501
    INVALID_REQUIRED_ACKS = 21, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, "The generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, "The member's protocols do not agree with those of the group."
    INVALID_GROUP_ID = 24, "The group id is invalid."
    UNKNOWN_MEMBER_ID = 25, "The member is not in the group."
    INVALID_SESSION_TIMEOUT = 26, "The session timeout is outside the range the broker allows."
    REBALANCE_IN_PROGRESS = 27, "The group is rebalancing; the member must rejoin."
    INVALID_COMMIT_OFFSET_SIZE = 28, "The offset commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, "Not authorised for the topic."
    GROUP_AUTHORIZATION_FAILED = 30, "Not authorised for the group."
    CLUSTER_AUTHORIZATION_FAILED = 31, "Not authorised for the cluster."
    INVALID_TIMESTAMP = 32, "The record's timestamp is out of range."
    UNSUPPORTED_SASL_MECHANISM = 33, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, "The broker does not serve this version of the API."
    TOPIC_ALREADY_EXISTS = 36, "There already is a topic of this name."
    INVALID_PARTITIONS = 37, "The number of partitions is invalid."
    INVALID_REPLICATION_FACTOR = 38, "The replication factor is below 1 or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, "The replica assignment is invalid."
    INVALID_CONFIG = 40, "A setting is unknown or has an invalid value."
    NOT_CONTROLLER = 41, "This broker is not the controller.", RETRIABLE
    INVALID_REQUEST = 42, "The request is malformed or contradicts itself."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, "The record batch's format does not support the request."
    POLICY_VIOLATION = 44, "The request breaks a policy of the broker."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, "The producer's sequence number does not follow the last one."
    DUPLICATE_SEQUENCE_NUMBER = 46, "The producer's sequence number was seen before."
    INVALID_PRODUCER_EPOCH = 47, "The producer's epoch is older than the current one."
    INVALID_TXN_STATE = 48, "The transaction's state does not allow the operation."
    INVALID_PRODUCER_ID_MAPPING = 49, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, "The transaction timeout is above the broker's maximum."
    CONCURRENT_TRANSACTIONS = 51, "Another operation on the same transaction is still going on.", RETRIABLE
    TRANSACTION_COORDINATOR_FENCED = 52, "The transaction coordinator is no longer the current one."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, "Not authorised for the transactional id."
    SECURITY_DISABLED = 54, "Security features are turned off."
    OPERATION_NOT_ATTEMPTED = 55, "Not attempted, since another operation of the request failed."
    KAFKA_STORAGE_ERROR = 56, "The broker could not read or write its storage.", RETRIABLE
    LOG_DIR_NOT_FOUND = 57, "There is no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = 59, "The broker holds no state for this producer id."
    REASSIGNMENT_IN_PROGRESS = 60, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, "Delegation tokens are turned off."
    DELEGATION_TOKEN_NOT_FOUND = 62, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, "The principal is neither owner nor renewer of the delegation token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, "Delegation tokens cannot be requested over this kind of connection."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, "Not authorised for the delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, "The type of principal is not supported."
    NON_EMPTY_GROUP = 68, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, "There is no such fetch session.", RETRIABLE
    INVALID_FETCH_SESSION_EPOCH = 71, "The fetch session's epoch is invalid.", RETRIABLE
    LISTENER_NOT_FOUND = 72, "The leader has no listener like the one the request came in by.", RETRIABLE
    TOPIC_DELETION_DISABLED = 73, "Deleting topics is turned off."
    FENCED_LEADER_EPOCH = 74, "The leader epoch in the request is older than the broker's.", RETRIABLE
    UNKNOWN_LEADER_EPOCH = 75, "The leader epoch in the request is newer than the broker's.", RETRIABLE
    UNSUPPORTED_COMPRESSION_TYPE = 76, "The compression type is not supported for this client or topic."
    STALE_BROKER_EPOCH = 77, "The broker's epoch has changed."
    OFFSET_NOT_AVAILABLE = 78, "The new leader does not have the latest offset yet.", RETRIABLE
    MEMBER_ID_REQUIRED = 79, "The member needs the id in this answer to join the group."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, "The preferred leader is not available.", RETRIABLE
    GROUP_MAX_SIZE_REACHED = 81, "The group has its maximum number of members."
    FENCED_INSTANCE_ID = 82, "Another member has taken over the group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, "No eligible leader is available.", RETRIABLE
    ELECTION_NOT_NEEDED = 84, "The partition needs no election.", RETRIABLE
    NO_REASSIGNMENT_IN_PROGRESS = 85, "No reassignment is going on."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, "The group is subscribed to the topic, so its offsets cannot be deleted."
    INVALID_RECORD = 87, "A record is not what the topic accepts."
    UNSTABLE_OFFSET_COMMIT = 88, "Offsets of an open transaction are pending.", RETRIABLE
    THROTTLING_QUOTA_EXCEEDED = 89, "A quota is exceeded.", RETRIABLE
    PRODUCER_FENCED = 90, "A newer producer with the same transactional id has taken over."
    RESOURCE_NOT_FOUND = 91, "The resource named does not exist."
    DUPLICATE_RESOURCE = 92, "The request names the same resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, "The credential is not acceptable."
    INCONSISTENT_VOTER_SET = 94, "Sender or receiver is not one of the expected voters."
    INVALID_UPDATE_VERSION = 95, "The update version is invalid."
    FEATURE_UPDATE_FAILED = 96, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, "The forwarded principal could not be read."
    SNAPSHOT_NOT_FOUND = 98, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, "This broker has no topic of this id.", RETRIABLE
    DUPLICATE_BROKER_REGISTRATION = 101, "The broker id is in use."
    BROKER_ID_NOT_REGISTERED = 102, "The broker id is not registered."
    INCONSISTENT_TOPIC_ID = 103, "The topic id is not that of the log.", RETRIABLE
    INCONSISTENT_CLUSTER_ID = 104, "The cluster id is not that of this cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, "The fetch session mixes topic ids and topic names.", RETRIABLE
    INELIGIBLE_REPLICA = 107, "A replica is not eligible to be in sync."
    NEW_LEADER_ELECTED = 108, "The partition was changed as requested, but its leader has changed too."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, "The offset has moved to tiered storage."
    FENCED_MEMBER_EPOCH = 110, "The member's epoch is fenced; it must give up its partitions and rejoin."
    UNRELEASED_INSTANCE_ID = 111, "The group instance id is still held by another member."
    UNSUPPORTED_ASSIGNOR = 112, "The group does not support the assignor or its version."
    STALE_MEMBER_EPOCH = 113, "The member's epoch is stale; it must heartbeat first."
    MISMATCHED_ENDPOINT_TYPE = 114, "The request was sent to the wrong kind of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, "The kind of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, "There is no such controller."
    UNKNOWN_SUBSCRIPTION_ID = 117, "The telemetry subscription id is not the current one."
    TELEMETRY_TOO_LARGE = 118, "The telemetry is larger than the broker accepts."
    INVALID_REGISTRATION = 119, "The controller holds the broker's registration to be invalid."
    TRANSACTION_ABORTABLE = 120, "The transaction can only be aborted."
    INVALID_RECORD_STATE = 121, "The record's state does not allow the acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, "There is no such share session.", RETRIABLE
    INVALID_SHARE_SESSION_EPOCH = 123, "The share session's epoch is invalid.", RETRIABLE
    FENCED_STATE_EPOCH = 124, "The share group's state epoch does not match."
    INVALID_VOTER_KEY = 125, "The voter's key is not the replica's."
    DUPLICATE_VOTER = 126, "There already is such a voter."
    VOTER_NOT_FOUND = 127, "There is no such voter."
    INVALID_REGULAR_EXPRESSION = 128, "The regular expression is invalid."
    REBOOTSTRAP_REQUIRED = 129, "The client's metadata is stale; it must bootstrap again."
    STREAMS_INVALID_TOPOLOGY = 130, "The topology is invalid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, "The topology's epoch is invalid."
    STREAMS_TOPOLOGY_FENCED = 132, "The topology's epoch is outdated."
    SHARE_SESSION_LIMIT_REACHED = 133, "There are as many share sessions as there may be.", RETRIABLE
    GROUP_DELETION_FAILED = 134, "The group could not be deleted."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, "The topology's description could not be updated."
    CONTROLLER_ID_NOT_REGISTERED = 136, "There is no controller with this id."
    # fmt: on


class KafkaError(Exception):
    """An error with one of Kafka's error codes.

    Subclasses define the code, which has a default message, and whether a retry may succeed. An instance may have
    another message; it is returned in the `error_message` field if the API has one.
    """

    error_code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    message: str = error_code.message
    retriable: bool = error_code.retriable

    def __init_subclass__(cls) -> None:
        if code := vars(cls).get("error_code"):
            cls.message = vars(cls).get("message", code.message)
            cls.retriable = vars(cls).get("retriable", code.retriable)

    def __init__(self, message: str | None = None) -> None:
        if message is not None:
            self.message = message
        super().__init__(self.message)


def detached(error: KafkaError) -> KafkaError:
    """Return the error without traceback and context."""
    # Their frames would keep local variables, such as buffers, in memory.
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def error_for(code: int) -> KafkaError:
    """Return the exception for a code other than 0 in a response.

    An unknown code, as from a newer broker, becomes UnknownServerError.
    """
    if code == ErrorCode.NONE:
        message = "error code 0 is not an error"
        raise ValueError(message)
    if code not in ERRORS:
        return UnknownServerError(f"The broker answered with the unknown error code {code}.")
    return ERRORS[ErrorCode(code)]()


class UnknownServerError(KafkaError):
    error_code = ErrorCode.UNKNOWN_SERVER_ERROR


class FetchSessionIdNotFound(KafkaError):
    error_code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND


class InvalidFetchSessionEpoch(KafkaError):
    error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH


class FetchSessionTopicIdError(KafkaError):
    error_code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


class OffsetOutOfRange(KafkaError):
    error_code = ErrorCode.OFFSET_OUT_OF_RANGE


class CorruptMessage(KafkaError):
    error_code = ErrorCode.CORRUPT_MESSAGE


class UnknownTopicOrPartition(KafkaError):
    error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class LeaderNotAvailable(KafkaError):
    error_code = ErrorCode.LEADER_NOT_AVAILABLE


class NotLeaderOrFollower(KafkaError):
    error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER


class RequestTimedOut(KafkaError):
    error_code = ErrorCode.REQUEST_TIMED_OUT


class BrokerNotAvailable(KafkaError):
    error_code = ErrorCode.BROKER_NOT_AVAILABLE


class MessageTooLarge(KafkaError):
    error_code = ErrorCode.MESSAGE_TOO_LARGE


class OffsetMetadataTooLarge(KafkaError):
    error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class NetworkException(KafkaError):
    error_code = ErrorCode.NETWORK_EXCEPTION


class CoordinatorNotAvailable(KafkaError):
    error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class NotCoordinator(KafkaError):
    error_code = ErrorCode.NOT_COORDINATOR


class InvalidTopicException(KafkaError):
    error_code = ErrorCode.INVALID_TOPIC_EXCEPTION


class NotEnoughReplicas(KafkaError):
    error_code = ErrorCode.NOT_ENOUGH_REPLICAS


class NotEnoughReplicasAfterAppend(KafkaError):
    error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


class InvalidRequiredAcks(KafkaError):
    error_code = ErrorCode.INVALID_REQUIRED_ACKS


class IllegalGeneration(KafkaError):
    error_code = ErrorCode.ILLEGAL_GENERATION


class InconsistentGroupProtocol(KafkaError):
    error_code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class InvalidGroupId(KafkaError):
    error_code = ErrorCode.INVALID_GROUP_ID


class UnknownMemberId(KafkaError):
    error_code = ErrorCode.UNKNOWN_MEMBER_ID


class InvalidSessionTimeout(KafkaError):
    error_code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgress(KafkaError):
    error_code = ErrorCode.REBALANCE_IN_PROGRESS


class TopicAuthorizationFailed(KafkaError):
    error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupAuthorizationFailed(KafkaError):
    error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED


class ClusterAuthorizationFailed(KafkaError):
    error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class InvalidTimestamp(KafkaError):
    error_code = ErrorCode.INVALID_TIMESTAMP


class UnsupportedSaslMechanism(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM


class IllegalSaslState(KafkaError):
    error_code = ErrorCode.ILLEGAL_SASL_STATE


class UnsupportedVersion(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_VERSION


class TopicAlreadyExists(KafkaError):
    error_code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidPartitions(KafkaError):
    error_code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(KafkaError):
    error_code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(KafkaError):
    error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class NoReassignmentInProgress(KafkaError):
    error_code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class InvalidUpdateVersion(KafkaError):
    error_code = ErrorCode.INVALID_UPDATE_VERSION


class InvalidConfig(KafkaError):
    error_code = ErrorCode.INVALID_CONFIG


class InvalidRequest(KafkaError):
    error_code = ErrorCode.INVALID_REQUEST


class UnsupportedForMessageFormat(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class PolicyViolation(KafkaError):
    error_code = ErrorCode.POLICY_VIOLATION


class OutOfOrderSequenceNumber(KafkaError):
    error_code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequenceNumber(KafkaError):
    error_code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER


class InvalidProducerEpoch(KafkaError):
    error_code = ErrorCode.INVALID_PRODUCER_EPOCH


class InvalidTxnState(KafkaError):
    error_code = ErrorCode.INVALID_TXN_STATE


class InvalidProducerIdMapping(KafkaError):
    error_code = ErrorCode.INVALID_PRODUCER_ID_MAPPING


class InvalidTransactionTimeout(KafkaError):
    error_code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactions(KafkaError):
    error_code = ErrorCode.CONCURRENT_TRANSACTIONS


class TransactionCoordinatorFenced(KafkaError):
    error_code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


class TransactionalIdAuthorizationFailed(KafkaError):
    error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


class SecurityDisabled(KafkaError):
    error_code = ErrorCode.SECURITY_DISABLED


class OperationNotAttempted(KafkaError):
    error_code = ErrorCode.OPERATION_NOT_ATTEMPTED


class KafkaStorageError(KafkaError):
    error_code = ErrorCode.KAFKA_STORAGE_ERROR


class SaslAuthenticationFailed(KafkaError):
    error_code = ErrorCode.SASL_AUTHENTICATION_FAILED


class UnknownProducerId(KafkaError):
    error_code = ErrorCode.UNKNOWN_PRODUCER_ID


class DelegationTokenAuthorizationFailed(KafkaError):
    error_code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED


class NonEmptyGroup(KafkaError):
    error_code = ErrorCode.NON_EMPTY_GROUP


class GroupIdNotFound(KafkaError):
    error_code = ErrorCode.GROUP_ID_NOT_FOUND


class TopicDeletionDisabled(KafkaError):
    error_code = ErrorCode.TOPIC_DELETION_DISABLED


class FencedLeaderEpoch(KafkaError):
    error_code = ErrorCode.FENCED_LEADER_EPOCH


class UnknownLeaderEpoch(KafkaError):
    error_code = ErrorCode.UNKNOWN_LEADER_EPOCH


class UnsupportedCompressionType(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class OffsetNotAvailable(KafkaError):
    error_code = ErrorCode.OFFSET_NOT_AVAILABLE


class MemberIdRequired(KafkaError):
    error_code = ErrorCode.MEMBER_ID_REQUIRED


class GroupMaxSizeReached(KafkaError):
    error_code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceId(KafkaError):
    error_code = ErrorCode.FENCED_INSTANCE_ID


class GroupSubscribedToTopic(KafkaError):
    error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


class InvalidRecord(KafkaError):
    error_code = ErrorCode.INVALID_RECORD


class InvalidRecordState(KafkaError):
    error_code = ErrorCode.INVALID_RECORD_STATE


class ShareSessionNotFound(KafkaError):
    error_code = ErrorCode.SHARE_SESSION_NOT_FOUND


class InvalidShareSessionEpoch(KafkaError):
    error_code = ErrorCode.INVALID_SHARE_SESSION_EPOCH


class ShareSessionLimitReached(KafkaError):
    error_code = ErrorCode.SHARE_SESSION_LIMIT_REACHED


class UnstableOffsetCommit(KafkaError):
    error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT


class ThrottlingQuotaExceeded(KafkaError):
    error_code = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class ProducerFenced(KafkaError):
    error_code = ErrorCode.PRODUCER_FENCED


class ResourceNotFound(KafkaError):
    error_code = ErrorCode.RESOURCE_NOT_FOUND


class DuplicateResource(KafkaError):
    error_code = ErrorCode.DUPLICATE_RESOURCE


class UnacceptableCredential(KafkaError):
    error_code = ErrorCode.UNACCEPTABLE_CREDENTIAL


class UnknownTopicId(KafkaError):
    error_code = ErrorCode.UNKNOWN_TOPIC_ID


class InconsistentTopicId(KafkaError):
    error_code = ErrorCode.INCONSISTENT_TOPIC_ID


class TransactionalIdNotFound(KafkaError):
    error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class MismatchedEndpointType(KafkaError):
    error_code = ErrorCode.MISMATCHED_ENDPOINT_TYPE


class UnsupportedEndpointType(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


class TransactionAbortable(KafkaError):
    error_code = ErrorCode.TRANSACTION_ABORTABLE


class FencedMemberEpoch(KafkaError):
    error_code = ErrorCode.FENCED_MEMBER_EPOCH


class UnreleasedInstanceId(KafkaError):
    error_code = ErrorCode.UNRELEASED_INSTANCE_ID


class UnsupportedAssignor(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_ASSIGNOR


class StaleMemberEpoch(KafkaError):
    error_code = ErrorCode.STALE_MEMBER_EPOCH


class InvalidRegularExpression(KafkaError):
    error_code = ErrorCode.INVALID_REGULAR_EXPRESSION


def _class_of(code: ErrorCode) -> type[KafkaError]:
    """Return a new class for a code that korvet passes on and never raises."""
    name = "".join(map(str.capitalize, code.name.split("_")))
    return type(name, (KafkaError,), {"error_code": code, "__module__": __name__})


ERRORS: dict[ErrorCode, type[KafkaError]] = {error.error_code: error for error in KafkaError.__subclasses__()}
ERRORS |= {code: _class_of(code) for code in ErrorCode if code and code not in ERRORS}
globals().update({error.__name__: error for error in ERRORS.values()})  # pickle looks classes up here
