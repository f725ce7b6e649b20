"""Kafka's error codes, and an exception for each of them.

A handler raises an error, and the function that builds the response for a partition (topic, group) catches `KafkaError`
and sets its `error_code`. Codes, names and retriability are those of Apache Kafka 4.4
(org.apache.kafka.common.protocol.Errors); the messages are korvet's.

`ProtocolError` is not a Kafka error and has no code, since a client that sent such bytes could not read a response.
"""

# ruff: noqa: N818  the names are Kafka's

from __future__ import annotations

from enum import IntEnum


class ProtocolError(Exception):
    """The received bytes are not a Kafka message. The connection is closed."""


class ErrorCode(IntEnum):
    """The values of `error_code` fields."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133
    GROUP_DELETION_FAILED = 134
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135
    CONTROLLER_ID_NOT_REGISTERED = 136


class KafkaError(Exception):
    """An error with one of Kafka's error codes.

    Subclasses define the code, a default message, and whether a retry may succeed. An instance may have another
    message; it is returned in the `error_message` field if the API has one.
    """

    error_code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    message: str = "The broker met an error it did not expect."
    retriable: bool = False

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
    message = "The broker met an error it did not expect."


class OffsetOutOfRange(KafkaError):
    error_code = ErrorCode.OFFSET_OUT_OF_RANGE
    message = "The offset lies outside the partition's log."


class CorruptMessage(KafkaError):
    error_code = ErrorCode.CORRUPT_MESSAGE
    message = "The record batch is damaged: checksum, length or structure do not hold."
    retriable = True


class UnknownTopicOrPartition(KafkaError):
    error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    message = "This broker has no such topic or partition."
    retriable = True


class InvalidFetchSize(KafkaError):
    error_code = ErrorCode.INVALID_FETCH_SIZE
    message = "The fetch size is invalid."


class LeaderNotAvailable(KafkaError):
    error_code = ErrorCode.LEADER_NOT_AVAILABLE
    message = "The partition has no leader at the moment."
    retriable = True


class NotLeaderOrFollower(KafkaError):
    error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    message = "This broker is neither the partition's leader nor one of its followers."
    retriable = True


class RequestTimedOut(KafkaError):
    error_code = ErrorCode.REQUEST_TIMED_OUT
    message = "The request was not done within its time limit."
    retriable = True


class BrokerNotAvailable(KafkaError):
    error_code = ErrorCode.BROKER_NOT_AVAILABLE
    message = "The broker is not available."


class ReplicaNotAvailable(KafkaError):
    error_code = ErrorCode.REPLICA_NOT_AVAILABLE
    message = "The requested replica is not available."
    retriable = True


class MessageTooLarge(KafkaError):
    error_code = ErrorCode.MESSAGE_TOO_LARGE
    message = "The record batch is larger than the broker accepts."


class StaleControllerEpoch(KafkaError):
    error_code = ErrorCode.STALE_CONTROLLER_EPOCH
    message = "The controller has moved to another broker."


class OffsetMetadataTooLarge(KafkaError):
    error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
    message = "The metadata committed beside an offset is too long."


class NetworkException(KafkaError):
    error_code = ErrorCode.NETWORK_EXCEPTION
    message = "The connection was lost before the answer arrived."
    retriable = True


class CoordinatorLoadInProgress(KafkaError):
    error_code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    message = "The coordinator is still loading its state."
    retriable = True


class CoordinatorNotAvailable(KafkaError):
    error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    message = "The coordinator is not available."
    retriable = True


class NotCoordinator(KafkaError):
    error_code = ErrorCode.NOT_COORDINATOR
    message = "This broker is not the coordinator of that group or transactional id."
    retriable = True


class InvalidTopicException(KafkaError):
    error_code = ErrorCode.INVALID_TOPIC_EXCEPTION
    message = "The topic's name is invalid, or the operation is not allowed on it."


class RecordListTooLarge(KafkaError):
    error_code = ErrorCode.RECORD_LIST_TOO_LARGE
    message = "The record batch is larger than a log segment may be."


class NotEnoughReplicas(KafkaError):
    error_code = ErrorCode.NOT_ENOUGH_REPLICAS
    message = "Fewer replicas are in sync than the topic demands; nothing was written."
    retriable = True


class NotEnoughReplicasAfterAppend(KafkaError):
    error_code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    message = "The records were written, but not to as many replicas as the topic demands."
    retriable = True


class InvalidRequiredAcks(KafkaError):
    error_code = ErrorCode.INVALID_REQUIRED_ACKS
    message = "acks must be -1, 0 or 1."


class IllegalGeneration(KafkaError):
    error_code = ErrorCode.ILLEGAL_GENERATION
    message = "The generation is not the group's current one."


class InconsistentGroupProtocol(KafkaError):
    error_code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    message = "The member's protocols do not agree with those of the group."


class InvalidGroupId(KafkaError):
    error_code = ErrorCode.INVALID_GROUP_ID
    message = "The group id is invalid."


class UnknownMemberId(KafkaError):
    error_code = ErrorCode.UNKNOWN_MEMBER_ID
    message = "The member is not in the group."


class InvalidSessionTimeout(KafkaError):
    error_code = ErrorCode.INVALID_SESSION_TIMEOUT
    message = "The session timeout is outside the range the broker allows."


class RebalanceInProgress(KafkaError):
    error_code = ErrorCode.REBALANCE_IN_PROGRESS
    message = "The group is rebalancing; the member must rejoin."


class InvalidCommitOffsetSize(KafkaError):
    error_code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    message = "The offset commit is too large."


class TopicAuthorizationFailed(KafkaError):
    error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    message = "Not authorised for the topic."


class GroupAuthorizationFailed(KafkaError):
    error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    message = "Not authorised for the group."


class ClusterAuthorizationFailed(KafkaError):
    error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    message = "Not authorised for the cluster."


class InvalidTimestamp(KafkaError):
    error_code = ErrorCode.INVALID_TIMESTAMP
    message = "The record's timestamp is out of range."


class UnsupportedSaslMechanism(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    message = "The broker does not offer this SASL mechanism."


class IllegalSaslState(KafkaError):
    error_code = ErrorCode.ILLEGAL_SASL_STATE
    message = "The request does not fit the state of the SASL exchange."


class UnsupportedVersion(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_VERSION
    message = "The broker does not serve this version of the API."


class TopicAlreadyExists(KafkaError):
    error_code = ErrorCode.TOPIC_ALREADY_EXISTS
    message = "There already is a topic of this name."


class InvalidPartitions(KafkaError):
    error_code = ErrorCode.INVALID_PARTITIONS
    message = "The number of partitions is invalid."


class InvalidReplicationFactor(KafkaError):
    error_code = ErrorCode.INVALID_REPLICATION_FACTOR
    message = "The replication factor is below 1 or above the number of brokers."


class InvalidReplicaAssignment(KafkaError):
    error_code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    message = "The replica assignment is invalid."


class InvalidConfig(KafkaError):
    error_code = ErrorCode.INVALID_CONFIG
    message = "A setting is unknown or has an invalid value."


class NotController(KafkaError):
    error_code = ErrorCode.NOT_CONTROLLER
    message = "This broker is not the controller."
    retriable = True


class InvalidRequest(KafkaError):
    error_code = ErrorCode.INVALID_REQUEST
    message = "The request is malformed or contradicts itself."


class UnsupportedForMessageFormat(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    message = "The record batch's format does not support the request."


class PolicyViolation(KafkaError):
    error_code = ErrorCode.POLICY_VIOLATION
    message = "The request breaks a policy of the broker."


class OutOfOrderSequenceNumber(KafkaError):
    error_code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    message = "The producer's sequence number does not follow the last one."


class DuplicateSequenceNumber(KafkaError):
    error_code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    message = "The producer's sequence number was seen before."


class InvalidProducerEpoch(KafkaError):
    error_code = ErrorCode.INVALID_PRODUCER_EPOCH
    message = "The producer's epoch is older than the current one."


class InvalidTxnState(KafkaError):
    error_code = ErrorCode.INVALID_TXN_STATE
    message = "The transaction's state does not allow the operation."


class InvalidProducerIdMapping(KafkaError):
    error_code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    message = "The producer id does not belong to the transactional id."


class InvalidTransactionTimeout(KafkaError):
    error_code = ErrorCode.INVALID_TRANSACTION_TIMEOUT
    message = "The transaction timeout is above the broker's maximum."


class ConcurrentTransactions(KafkaError):
    error_code = ErrorCode.CONCURRENT_TRANSACTIONS
    message = "Another operation on the same transaction is still going on."
    retriable = True


class TransactionCoordinatorFenced(KafkaError):
    error_code = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    message = "The transaction coordinator is no longer the current one."


class TransactionalIdAuthorizationFailed(KafkaError):
    error_code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    message = "Not authorised for the transactional id."


class SecurityDisabled(KafkaError):
    error_code = ErrorCode.SECURITY_DISABLED
    message = "Security features are turned off."


class OperationNotAttempted(KafkaError):
    error_code = ErrorCode.OPERATION_NOT_ATTEMPTED
    message = "Not attempted, since another operation of the request failed."


class KafkaStorageError(KafkaError):
    error_code = ErrorCode.KAFKA_STORAGE_ERROR
    message = "The broker could not read or write its storage."
    retriable = True


class LogDirNotFound(KafkaError):
    error_code = ErrorCode.LOG_DIR_NOT_FOUND
    message = "There is no such log directory."


class SaslAuthenticationFailed(KafkaError):
    error_code = ErrorCode.SASL_AUTHENTICATION_FAILED
    message = "SASL authentication failed."


class UnknownProducerId(KafkaError):
    error_code = ErrorCode.UNKNOWN_PRODUCER_ID
    message = "The broker holds no state for this producer id."


class ReassignmentInProgress(KafkaError):
    error_code = ErrorCode.REASSIGNMENT_IN_PROGRESS
    message = "The partition is being reassigned."


class DelegationTokenAuthDisabled(KafkaError):
    error_code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    message = "Delegation tokens are turned off."


class DelegationTokenNotFound(KafkaError):
    error_code = ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    message = "There is no such delegation token."


class DelegationTokenOwnerMismatch(KafkaError):
    error_code = ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    message = "The principal is neither owner nor renewer of the delegation token."


class DelegationTokenRequestNotAllowed(KafkaError):
    error_code = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    message = "Delegation tokens cannot be requested over this kind of connection."


class DelegationTokenAuthorizationFailed(KafkaError):
    error_code = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    message = "Not authorised for the delegation token."


class DelegationTokenExpired(KafkaError):
    error_code = ErrorCode.DELEGATION_TOKEN_EXPIRED
    message = "The delegation token has expired."


class InvalidPrincipalType(KafkaError):
    error_code = ErrorCode.INVALID_PRINCIPAL_TYPE
    message = "The type of principal is not supported."


class NonEmptyGroup(KafkaError):
    error_code = ErrorCode.NON_EMPTY_GROUP
    message = "The group still has members."


class GroupIdNotFound(KafkaError):
    error_code = ErrorCode.GROUP_ID_NOT_FOUND
    message = "There is no such group."


class FetchSessionIdNotFound(KafkaError):
    error_code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    message = "There is no such fetch session."
    retriable = True


class InvalidFetchSessionEpoch(KafkaError):
    error_code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    message = "The fetch session's epoch is invalid."
    retriable = True


class ListenerNotFound(KafkaError):
    error_code = ErrorCode.LISTENER_NOT_FOUND
    message = "The leader has no listener like the one the request came in by."
    retriable = True


class TopicDeletionDisabled(KafkaError):
    error_code = ErrorCode.TOPIC_DELETION_DISABLED
    message = "Deleting topics is turned off."


class FencedLeaderEpoch(KafkaError):
    error_code = ErrorCode.FENCED_LEADER_EPOCH
    message = "The leader epoch in the request is older than the broker's."
    retriable = True


class UnknownLeaderEpoch(KafkaError):
    error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
    message = "The leader epoch in the request is newer than the broker's."
    retriable = True


class UnsupportedCompressionType(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    message = "The compression type is not supported for this client or topic."


class StaleBrokerEpoch(KafkaError):
    error_code = ErrorCode.STALE_BROKER_EPOCH
    message = "The broker's epoch has changed."


class OffsetNotAvailable(KafkaError):
    error_code = ErrorCode.OFFSET_NOT_AVAILABLE
    message = "The new leader does not have the latest offset yet."
    retriable = True


class MemberIdRequired(KafkaError):
    error_code = ErrorCode.MEMBER_ID_REQUIRED
    message = "The member needs the id in this answer to join the group."


class PreferredLeaderNotAvailable(KafkaError):
    error_code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    message = "The preferred leader is not available."
    retriable = True


class GroupMaxSizeReached(KafkaError):
    error_code = ErrorCode.GROUP_MAX_SIZE_REACHED
    message = "The group has its maximum number of members."


class FencedInstanceId(KafkaError):
    error_code = ErrorCode.FENCED_INSTANCE_ID
    message = "Another member has taken over the group instance id."


class EligibleLeadersNotAvailable(KafkaError):
    error_code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    message = "No eligible leader is available."
    retriable = True


class ElectionNotNeeded(KafkaError):
    error_code = ErrorCode.ELECTION_NOT_NEEDED
    message = "The partition needs no election."
    retriable = True


class NoReassignmentInProgress(KafkaError):
    error_code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    message = "No reassignment is going on."


class GroupSubscribedToTopic(KafkaError):
    error_code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    message = "The group is subscribed to the topic, so its offsets cannot be deleted."


class InvalidRecord(KafkaError):
    error_code = ErrorCode.INVALID_RECORD
    message = "A record is not what the topic accepts."


class UnstableOffsetCommit(KafkaError):
    error_code = ErrorCode.UNSTABLE_OFFSET_COMMIT
    message = "Offsets of an open transaction are pending."
    retriable = True


class ThrottlingQuotaExceeded(KafkaError):
    error_code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
    message = "A quota is exceeded."
    retriable = True


class ProducerFenced(KafkaError):
    error_code = ErrorCode.PRODUCER_FENCED
    message = "A newer producer with the same transactional id has taken over."


class ResourceNotFound(KafkaError):
    error_code = ErrorCode.RESOURCE_NOT_FOUND
    message = "The resource named does not exist."


class DuplicateResource(KafkaError):
    error_code = ErrorCode.DUPLICATE_RESOURCE
    message = "The request names the same resource twice."


class UnacceptableCredential(KafkaError):
    error_code = ErrorCode.UNACCEPTABLE_CREDENTIAL
    message = "The credential is not acceptable."


class InconsistentVoterSet(KafkaError):
    error_code = ErrorCode.INCONSISTENT_VOTER_SET
    message = "Sender or receiver is not one of the expected voters."


class InvalidUpdateVersion(KafkaError):
    error_code = ErrorCode.INVALID_UPDATE_VERSION
    message = "The update version is invalid."


class FeatureUpdateFailed(KafkaError):
    error_code = ErrorCode.FEATURE_UPDATE_FAILED
    message = "The features could not be updated."


class PrincipalDeserializationFailure(KafkaError):
    error_code = ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE
    message = "The forwarded principal could not be read."


class SnapshotNotFound(KafkaError):
    error_code = ErrorCode.SNAPSHOT_NOT_FOUND
    message = "There is no such snapshot."


class PositionOutOfRange(KafkaError):
    error_code = ErrorCode.POSITION_OUT_OF_RANGE
    message = "The position lies outside the snapshot."


class UnknownTopicId(KafkaError):
    error_code = ErrorCode.UNKNOWN_TOPIC_ID
    message = "This broker has no topic of this id."
    retriable = True


class DuplicateBrokerRegistration(KafkaError):
    error_code = ErrorCode.DUPLICATE_BROKER_REGISTRATION
    message = "The broker id is in use."


class BrokerIdNotRegistered(KafkaError):
    error_code = ErrorCode.BROKER_ID_NOT_REGISTERED
    message = "The broker id is not registered."


class InconsistentTopicId(KafkaError):
    error_code = ErrorCode.INCONSISTENT_TOPIC_ID
    message = "The topic id is not that of the log."
    retriable = True


class InconsistentClusterId(KafkaError):
    error_code = ErrorCode.INCONSISTENT_CLUSTER_ID
    message = "The cluster id is not that of this cluster."


class TransactionalIdNotFound(KafkaError):
    error_code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    message = "There is no such transactional id."


class FetchSessionTopicIdError(KafkaError):
    error_code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    message = "The fetch session mixes topic ids and topic names."
    retriable = True


class IneligibleReplica(KafkaError):
    error_code = ErrorCode.INELIGIBLE_REPLICA
    message = "A replica is not eligible to be in sync."


class NewLeaderElected(KafkaError):
    error_code = ErrorCode.NEW_LEADER_ELECTED
    message = "The partition was changed as requested, but its leader has changed too."


class OffsetMovedToTieredStorage(KafkaError):
    error_code = ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    message = "The offset has moved to tiered storage."


class FencedMemberEpoch(KafkaError):
    error_code = ErrorCode.FENCED_MEMBER_EPOCH
    message = "The member's epoch is fenced; it must give up its partitions and rejoin."


class UnreleasedInstanceId(KafkaError):
    error_code = ErrorCode.UNRELEASED_INSTANCE_ID
    message = "The group instance id is still held by another member."


class UnsupportedAssignor(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_ASSIGNOR
    message = "The group does not support the assignor or its version."


class StaleMemberEpoch(KafkaError):
    error_code = ErrorCode.STALE_MEMBER_EPOCH
    message = "The member's epoch is stale; it must heartbeat first."


class MismatchedEndpointType(KafkaError):
    error_code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
    message = "The request was sent to the wrong kind of endpoint."


class UnsupportedEndpointType(KafkaError):
    error_code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    message = "The kind of endpoint is not supported."


class UnknownControllerId(KafkaError):
    error_code = ErrorCode.UNKNOWN_CONTROLLER_ID
    message = "There is no such controller."


class UnknownSubscriptionId(KafkaError):
    error_code = ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    message = "The telemetry subscription id is not the current one."


class TelemetryTooLarge(KafkaError):
    error_code = ErrorCode.TELEMETRY_TOO_LARGE
    message = "The telemetry is larger than the broker accepts."


class InvalidRegistration(KafkaError):
    error_code = ErrorCode.INVALID_REGISTRATION
    message = "The controller holds the broker's registration to be invalid."


class TransactionAbortable(KafkaError):
    error_code = ErrorCode.TRANSACTION_ABORTABLE
    message = "The transaction can only be aborted."


class InvalidRecordState(KafkaError):
    error_code = ErrorCode.INVALID_RECORD_STATE
    message = "The record's state does not allow the acknowledgement."


class ShareSessionNotFound(KafkaError):
    error_code = ErrorCode.SHARE_SESSION_NOT_FOUND
    message = "There is no such share session."
    retriable = True


class InvalidShareSessionEpoch(KafkaError):
    error_code = ErrorCode.INVALID_SHARE_SESSION_EPOCH
    message = "The share session's epoch is invalid."
    retriable = True


class FencedStateEpoch(KafkaError):
    error_code = ErrorCode.FENCED_STATE_EPOCH
    message = "The share group's state epoch does not match."


class InvalidVoterKey(KafkaError):
    error_code = ErrorCode.INVALID_VOTER_KEY
    message = "The voter's key is not the replica's."


class DuplicateVoter(KafkaError):
    error_code = ErrorCode.DUPLICATE_VOTER
    message = "There already is such a voter."


class VoterNotFound(KafkaError):
    error_code = ErrorCode.VOTER_NOT_FOUND
    message = "There is no such voter."


class InvalidRegularExpression(KafkaError):
    error_code = ErrorCode.INVALID_REGULAR_EXPRESSION
    message = "The regular expression is invalid."


class RebootstrapRequired(KafkaError):
    error_code = ErrorCode.REBOOTSTRAP_REQUIRED
    message = "The client's metadata is stale; it must bootstrap again."


class StreamsInvalidTopology(KafkaError):
    error_code = ErrorCode.STREAMS_INVALID_TOPOLOGY
    message = "The topology is invalid."


class StreamsInvalidTopologyEpoch(KafkaError):
    error_code = ErrorCode.STREAMS_INVALID_TOPOLOGY_EPOCH
    message = "The topology's epoch is invalid."


class StreamsTopologyFenced(KafkaError):
    error_code = ErrorCode.STREAMS_TOPOLOGY_FENCED
    message = "The topology's epoch is outdated."


class ShareSessionLimitReached(KafkaError):
    error_code = ErrorCode.SHARE_SESSION_LIMIT_REACHED
    message = "There are as many share sessions as there may be."
    retriable = True


class GroupDeletionFailed(KafkaError):
    error_code = ErrorCode.GROUP_DELETION_FAILED
    message = "The group could not be deleted."


class StreamsTopologyDescriptionUpdateFailed(KafkaError):
    error_code = ErrorCode.STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED
    message = "The topology's description could not be updated."


class ControllerIdNotRegistered(KafkaError):
    error_code = ErrorCode.CONTROLLER_ID_NOT_REGISTERED
    message = "There is no controller with this id."


ERRORS: dict[ErrorCode, type[KafkaError]] = {error.error_code: error for error in KafkaError.__subclasses__()}
