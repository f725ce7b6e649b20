"""The configured authorizer, the log of its decisions, and ACLs that reach another broker."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint, EntryPoints

import pytest
import trio

from korvet.broker.authorization import address_of, log_decisions, make_authorizer, open_authorization
from korvet.broker.context import Disconnect
from korvet.config import Config
from korvet.protocol.errors import ErrorCode, TopicAuthorizationFailed
from korvet.protocol.messages.find_coordinator import FindCoordinatorRequest
from korvet.security.acl_store import AclStore
from korvet.security.acls import Operation, ResourceType
from korvet.security.authorizer import GROUP, STANDARD, Authorizer, AuthorizerUsageError
from korvet.security.shared_document import KEY
from korvet.storage.memory import MemoryStorage
from tests.handlers.acls import create_acls, creation, secured_broker
from tests.handlers.support import T0, ask, batch, context, create, produce_request

ALICE = "User:alice"
TOPIC = ResourceType.TOPIC


def decided(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(each.levelno, each.getMessage()) for each in caplog.records if each.name == "korvet.audit"]


async def test_denial_is_logged_with_principal_host_operation_resource_and_api(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = await secured_broker()
    asking = context(0, principal=ALICE, api_name="Fetch")
    with caplog.at_level(logging.INFO, "korvet.audit"), pytest.raises(TopicAuthorizationFailed):
        broker.authorize(asking, Operation.READ, TOPIC, "a\nb")
    assert [] == decided(caplog)
    with caplog.at_level(logging.INFO, "korvet.audit"):
        log_decisions(asking)
        log_decisions(asking)

    message = r"denied principal='User:alice' host=127.0.0.1 operation=READ resource=TOPIC:'a\nb' api=Fetch"
    assert [(logging.INFO, message)] == decided(caplog)


async def test_allowed_operation_is_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    broker = await secured_broker()
    asking = context(0, principal="User:root", api_name="Fetch")
    with caplog.at_level(logging.DEBUG, "korvet.audit"):
        broker.authorize(asking, Operation.READ, TOPIC, "t")
        log_decisions(asking)
    with caplog.at_level(logging.INFO, "korvet.audit"):
        broker.authorize(asking, Operation.READ, TOPIC, "t")
        log_decisions(asking)

    message = "allowed principal='User:root' host=127.0.0.1 operation=READ resource=TOPIC:'t' api=Fetch"
    assert [(logging.DEBUG, message)] == decided(caplog)


async def test_many_denials_of_a_request_are_one_line_with_a_count_and_the_first_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = await secured_broker()
    names = [f"t{number}" for number in range(1_000)] + ["x" * 1_000]
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=["x" * 1_000, *names])
    with caplog.at_level(logging.INFO, "korvet.audit"):
        await ask(broker, 10, 4, request, principal=ALICE, api_name="FindCoordinator")

    message = (
        "denied principal='User:alice' host=127.0.0.1 operation=DESCRIBE"
        f" resources=GROUP:['{'x' * 255}…', 't0', 't1', 't2', 't3'] count=1002 api=FindCoordinator"
    )
    assert [(logging.INFO, message)] == decided(caplog)


async def test_selection_of_topics_logs_no_denial(caplog: pytest.LogCaptureFixture) -> None:
    broker = await secured_broker()
    await create(broker)
    with caplog.at_level(logging.INFO, "korvet.audit"):
        topics = await broker.topics(context(0, principal=ALICE), Operation.DESCRIBE)

    assert [] == topics
    assert [] == decided(caplog)


async def test_produce_without_acks_to_a_denied_topic_closes_the_connection() -> None:
    broker = await secured_broker()
    await create(broker)
    with pytest.raises(Disconnect, match=ErrorCode.TOPIC_AUTHORIZATION_FAILED.name):
        await ask(broker, 0, 11, produce_request({T0: batch()}, acks=0), principal=ALICE)


async def test_denied_topic_name_is_not_validated() -> None:
    broker = await secured_broker()
    with pytest.raises(TopicAuthorizationFailed):
        await broker.topic(context(0, principal=ALICE), "no such name!", Operation.READ)


@pytest.mark.parametrize(
    "peer, address",
    [
        ("10.0.0.1:9092", "10.0.0.1"),
        ("[::1]:9092", "0:0:0:0:0:0:0:1"),
        ("[2001:db8::ff00:42]:1", "2001:db8:0:0:0:0:ff00:42"),
        ("[::ffff:10.0.0.1]:9092", "10.0.0.1"),
        ("[fe80::1%eth0]:1", "fe80:0:0:0:0:0:0:1"),
        ("", ""),
    ],
)
def test_address_is_written_as_in_kafkas_acls(peer: str, address: str) -> None:
    assert address == address_of(peer)


# --- The setting --------------------------------------------------------------------------------------------


async def test_no_authorizer_is_configured_by_default() -> None:
    assert await open_authorization(MemoryStorage(), Config()) is None


def test_super_users_are_separated_by_semicolons() -> None:
    settings = {"authorizer_class_name": STANDARD, "super_users": "User:a; User:CN=b,O=c;"}
    authorizer = make_authorizer(Config(**settings))

    for principal in ("User:a", "User:CN=b,O=c"):
        assert authorizer.authorize(principal, "h", Operation.READ, TOPIC, "t")
    assert not authorizer.authorize("User:b", "h", Operation.READ, TOPIC, "t")


def test_everyone_may_be_allowed_where_no_acl_is() -> None:
    authorizer = make_authorizer(Config(authorizer_class_name=STANDARD, allow_everyone_if_no_acl_found=True))

    assert authorizer.authorize(ALICE, "h", Operation.READ, TOPIC, "t")


class OnlyReads(Authorizer):
    """An authorizer of another package."""

    def __init__(self, config: Config) -> None:
        self.node_id = config.node_id

    def authorize(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        return operation is Operation.READ


def install(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    entry_point = EntryPoint("reads", target, GROUP)
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda *, group: EntryPoints([entry_point]).select(group=group)
    )


def test_authorizer_of_an_installed_package_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "tests.broker.test_authorization:OnlyReads")
    authorizer = make_authorizer(Config(authorizer_class_name="reads", node_id=7))

    assert authorizer.authorize(ALICE, "h", Operation.READ, TOPIC, "t")
    assert authorizer.authorize_by_type(ALICE, "h", Operation.READ, TOPIC)
    assert not authorizer.authorize(ALICE, "h", Operation.WRITE, TOPIC, "t")
    assert isinstance(authorizer, OnlyReads)
    assert 7 == authorizer.node_id


@pytest.mark.parametrize("target", ["no.such.module:Authorizer", "korvet:NoSuchClass"])
def test_authorizer_that_cannot_be_imported_is_a_usage_error(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, target)
    with pytest.raises(AuthorizerUsageError, match="the authorizer reads cannot be imported"):
        make_authorizer(Config(authorizer_class_name="reads"))


def test_unknown_authorizer_is_a_usage_error() -> None:
    with pytest.raises(AuthorizerUsageError, match=f"name=other is unknown; accepted are {STANDARD}"):
        make_authorizer(Config(authorizer_class_name="other"))


async def test_broker_does_not_start_without_the_acls() -> None:
    storage = MemoryStorage()
    await storage.save(AclStore.kind, KEY, b"nonsense", expected_version=0)
    with pytest.raises(
        AuthorizerUsageError, match="the ACLs cannot be read: the document of ACLs is damaged"
    ):
        await secured_broker(storage)


async def test_acl_reaches_another_broker_within_a_second(autojump_clock: trio.abc.Clock) -> None:
    storage = MemoryStorage()
    one, other = await secured_broker(storage), await secured_broker(storage)
    asking = context(0, principal=ALICE)
    assert other.authorization is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other.authorization.acls.run)
        await trio.sleep(3.1)
        await create_acls(one, creation())
        assert not other.may(asking, Operation.READ, TOPIC, "orders")
        await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert other.may(asking, Operation.READ, TOPIC, "orders")
