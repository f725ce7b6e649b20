"""`python -m conformance.authorization [--write]`: play the table against Apache Kafka, and compare the stored one.

`--write` stores what Kafka answers. The unit tests compare korvet's answers with the stored table.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from conformance.answers import Fields, Reader
from conformance.apache_kafka import ApacheKafka, KafkaUnavailable
from conformance.authorization import table
from conformance.authorization.cases import CASES
from conformance.authorization.rows import groups_of, prepared, topics_of, version_of
from conformance.comparison import differing
from conformance.peers import KAFKA, Peer
from conformance.secured_kafka import jaas
from conformance.talk import Connection, Talk
from korvet.client.acls import creation_of
from korvet.protocol.messages.create_acls import CreateAclsRequest
from korvet.protocol.messages.describe_acls import DescribeAclsRequest
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest
from korvet.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from korvet.protocol.messages.sasl_handshake import SaslHandshakeRequest
from korvet.protocol.requests import encode_request
from korvet.security.acls import Operation, PatternType, Permission, ResourceType
from korvet.security.authorizer import STANDARD
from tests.support.frames import SIZE

LISTENER = "SASL_PLAINTEXT"


class LoggedIn(Connection):
    """A connection whose client has authenticated by PLAIN. The password is the user's name."""

    def __init__(self, port: int, user: str) -> None:
        self.user = user
        super().__init__(port)

    def _connect(self) -> socket.socket:
        connection = super()._connect()
        credentials = f"\0{self.user}\0{self.user}".encode()
        for request, version in (
            (SaslHandshakeRequest(mechanism="PLAIN"), 1),
            (SaslAuthenticateRequest(auth_bytes=credentials), 1),
        ):
            connection.sendall(b"".join(encode_request(request, version, 0, self.client_id)))
            with connection.makefile("rb") as answer:
                answer.read(SIZE.unpack(answer.read(SIZE.size))[0])
        return connection


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.authorization", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--write", action="store_true", help="store the answers of Apache Kafka")
    options = parser.parse_args(arguments)
    try:
        answers = recorded()
    except KafkaUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    if options.write:
        table.write(answers)
    faults = [*differences(table.read(), answers)]
    for fault in faults:
        print(fault)
    print(f"{len(answers)} rows, {len(CASES)} cases: {len(faults)} differences from the stored table")
    return 1 if faults else 0


def differences(stored: table.Answers, answers: table.Answers) -> Iterator[str]:
    """Yield a line for each field in which answers differ from the stored ones."""
    for row in sorted(stored.keys() ^ answers.keys()):
        yield f"{row}: only in {'the stored table' if row in stored else 'the new one'}"
    for row in stored.keys() & answers.keys():
        for case, expected in stored[row].items():
            for field, *pair in differing(row.partition(" ")[0], expected, answers[row].get(case, {})):
                yield f"{row}, {case}: {field}: {' -> '.join(pair)}"


def recorded() -> table.Answers:
    """Return the answers of a new Apache Kafka."""
    found: dict[str, dict[str, Fields]] = {name: {} for name, *_ in table.row_names()}
    with kafka() as running:
        allow_cases(running)
        for number, name in enumerate(CASES):
            for row, fields in answers_of(running, number).items():
                found[row][name] = fields
            print(".", end="", flush=True)
    print()
    return found


@contextmanager
def kafka() -> Iterator[ApacheKafka]:
    """Run Apache Kafka with an authorizer, and a user for each case."""
    users = {user_of(number): user_of(number) for number in range(len(CASES))}
    plain = jaas("PLAIN", "broker", "broker").removesuffix(";")
    given = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    settings = {
        "authorizer.class.name": STANDARD,
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{plain} {given};",
    }
    with ApacheKafka(settings=settings, listeners={LISTENER: LISTENER}) as running:
        yield running


def user_of(number: int) -> str:
    return f"case-{number}"


def scope_of(number: int) -> str:
    return f"s{number:04d}v00"


def allow_cases(running: ApacheKafka) -> None:
    """Create the ACLs of all cases. Wait until the broker has them, and gives out producer ids."""
    acls = [
        acl
        for number, case in enumerate(CASES.values())
        for acl in case.acls(f"User:{user_of(number)}", scope_of(number))
    ]
    with Talk(Peer(KAFKA, running.port), "admin") as talk:
        talk.tell(CreateAclsRequest(creations=[creation_of(acl) for acl in acls]))
        request = DescribeAclsRequest(
            resource_type_filter=ResourceType.ANY,
            resource_name_filter=None,
            pattern_type_filter=PatternType.ANY,
            principal_filter=None,
            host_filter=None,
            operation=Operation.ANY,
            permission_type=Permission.ANY,
        )
        talk.wait_until(
            lambda: sum(len(each.acls) for each in talk.tell(request).resources) == len(acls), "use ACLs"
        )
        transaction = FindCoordinatorRequest(key_type=1, coordinator_keys=["transaction"])
        talk.wait_until(
            lambda: not talk.tell(transaction).coordinators[0].error_code, "coordinate transactions"
        )
        first = InitProducerIdRequest(transactional_id="transaction", transaction_timeout_ms=1000)
        talk.wait_until(lambda: not talk.tell(first).error_code, "give out producer ids")


def answers_of(running: ApacheKafka, number: int) -> Mapping[str, Fields]:
    """Return what the principal of a case is answered, by row."""
    with Talk(Peer(KAFKA, running.port), scope_of(number)) as talk:
        prepare(talk)
        client = LoggedIn(running.ports[LISTENER], user_of(number))
        try:
            for name, row, version in table.row_names():
                talk.ask(row.build(talk, version), version, name, on=client)
        finally:
            client.close()
        reader = Reader(talk, as_records=True)
        return {step.label: table.decided(reader.fields(step)) for step in talk.steps}


def prepare(talk: Talk) -> None:
    """Create a case's topics and groups as a super user, and wait until they are there."""
    create, *commits = prepared(talk)
    talk.tell(create)
    for name in topics_of(talk):
        talk.until_ready(name.removeprefix(f"{talk.scope}-"))
    asked = FindCoordinatorRequest(coordinator_keys=groups_of(talk))
    talk.wait_until(
        lambda: not any(each.error_code for each in talk.tell(asked).coordinators), "find the coordinator"
    )
    for request in commits:
        talk.wait_until(partial(_commits, talk, request), "commit")


def _commits(talk: Talk, request: object) -> bool:
    return _is_committed(talk.tell(request, version_of(request)))


def _is_committed(answer: object) -> bool:
    topics = getattr(answer, "topics", ())
    return bool(topics) and not any(each.error_code for topic in topics for each in topic.partitions)


if __name__ == "__main__":
    sys.exit(main())
