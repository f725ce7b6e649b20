"""ACLs that one broker stores, in the processes of another broker on the same Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest
import trio

from conformance.talk import Connection
from korvet.client import open_client
from korvet.client.acls import create_acls, delete_acls
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from korvet.protocol.requests import decode_response
from korvet.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from korvet.security.authorizer import STANDARD
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

SETTINGS = {"authorizer.class.name": STANDARD, "allow.everyone.if.no.acl.found": "true"}
DENIED = Acl(ResourceType.TOPIC, PatternType.LITERAL, "t", "User:*", "*", Operation.ALL, Permission.DENY)
# The documented limit is a second. The machine may be busy with other tests.
LIMIT_S = 10.0
CONNECTIONS = 8


@pytest.fixture
def brokers() -> Iterator[tuple[KorvetProcess, KorvetProcess]]:
    with ExitStack() as stack:
        server = start_server(VALKEY)
        stack.callback(server.remove)
        one = stack.enter_context(KorvetProcess(storage=server.url, settings=SETTINGS))
        settings = {**SETTINGS, "node.id": "2", "processes": "2"}
        other = stack.enter_context(KorvetProcess(storage=server.url, settings=settings))
        yield one, other


def error_of(connection: Connection) -> int:
    """Return the error of the topic in Metadata."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    connection.send(request, 12)
    frame = connection.receive()
    assert isinstance(frame, bytearray)
    return decode_response(MetadataResponse, 12, frame)[1].topics[0].error_code


def all_answer(connections: list[Connection], code: ErrorCode) -> float:
    """Return the seconds until every connection gets the error."""
    began = time.monotonic()
    while {error_of(connection) for connection in connections} != {code}:
        assert time.monotonic() - began < LIMIT_S
    return time.monotonic() - began


@pytest.mark.servers
def test_acl_reaches_every_process_of_another_broker(
    brokers: tuple[KorvetProcess, KorvetProcess], report: Callable[[str], None]
) -> None:
    one, other = brokers
    # The kernel assigns connections to processes by a hash of their ports.
    connections = [Connection(other.port) for _ in range(CONNECTIONS)]

    async def alter(*, denied: bool) -> None:
        async with open_client(one.bootstrap_servers) as client:
            if denied:
                await create_acls(client, [DENIED])
            else:
                await delete_acls(client, [AclFilter(resource_name="t")])

    try:
        all_answer(connections, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        trio.run(partial(alter, denied=True))
        created_s = all_answer(connections, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        trio.run(partial(alter, denied=False))
        deleted_s = all_answer(connections, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    finally:
        for connection in connections:
            connection.close()
    report(f"an ACL reached another broker in {created_s:.2f} s, its deletion in {deleted_s:.2f} s")
