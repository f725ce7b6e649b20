"""ACLs on brokers without an authorizer. `conformance.authorization` compares brokers that have one."""

from __future__ import annotations

from conformance.authorization.rows import create_acls, delete_acls, describe_acls
from conformance.scenario import scenario
from conformance.talk import Talk
from korvet.protocol.messages.create_acls import CreateAclsRequest
from korvet.protocol.messages.delete_acls import DeleteAclsRequest
from korvet.protocol.messages.describe_acls import DescribeAclsRequest


@scenario(CreateAclsRequest)
def creating_without_an_authorizer(talk: Talk, version: int) -> None:
    talk.ask(create_acls(talk, version), version)
    talk.ask(CreateAclsRequest(creations=[]), version, "nothing")


@scenario(DescribeAclsRequest)
def describing_without_an_authorizer(talk: Talk, version: int) -> None:
    talk.ask(describe_acls(talk, version), version)


@scenario(DeleteAclsRequest)
def deleting_without_an_authorizer(talk: Talk, version: int) -> None:
    talk.ask(delete_acls(talk, version), version)
    talk.ask(DeleteAclsRequest(filters=[]), version, "nothing")
