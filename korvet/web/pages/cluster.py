"""Brokers and their settings, and the rules of access: ACLs, users and quotas."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from korvet.client import Client
from korvet.client.acls import list_acls
from korvet.client.administration import BROKER, Resource, describe_settings, describe_users
from korvet.client.cluster import raise_for
from korvet.client.quotas import list_quotas
from korvet.metrics.reading import SECTIONS, FiguresUnavailable, read_figures, stated
from korvet.protocol.errors import ClusterAuthorizationFailed, KafkaError
from korvet.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from korvet.protocol.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from korvet.security.acls import AclFilter, Operation
from korvet.security.quotas import sort_key
from korvet.web.inputs import MAX_NUMBER
from korvet.web.pages.access_actions import acl_fields, entity_text, quota_fields
from korvet.web.sessions import Visitor
from korvet.web.site import NotHere, Site, as_json, explained

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
MAX_ROWS = 2000
# Readings of the metrics are this far apart, however many visitors there are.
READ_AGAIN_S = 1.0


async def brokers(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the list of brokers with their log directories."""
    client = visitor.client
    answer = await client.request(
        DescribeClusterRequest(include_cluster_authorized_operations=True), DescribeClusterResponse
    )
    raise_for(answer.error_code, "the cluster", answer.error_message)
    rows = [
        {"broker": each, "directories": await _directories(client, each.broker_id)}
        for each in sorted(answer.brokers, key=lambda each: each.broker_id)
    ]
    figures = await _figures(site) if site.options.metrics and _may_describe(answer) else None
    values = {
        "cluster_id": answer.cluster_id,
        "controller_id": answer.controller_id,
        "rows": rows,
        "figures": figures,
    }
    return site.render(request, "brokers.html", values)


async def figures_json(site: Site, _request: Request, visitor: Visitor) -> Response:
    """Return what the broker's metrics say, as JSON."""
    if not site.options.metrics:
        raise NotHere("The page was started without the URL of a broker's metrics.")
    # A visitor whose login is no longer valid gets nothing.
    answer = await visitor.client.request(
        DescribeClusterRequest(include_cluster_authorized_operations=True), DescribeClusterResponse
    )
    raise_for(answer.error_code, "the cluster", answer.error_message)
    if not _may_describe(answer):
        raise ClusterAuthorizationFailed("The broker's figures need DESCRIBE on the cluster.")
    return as_json(await _figures(site))


def _may_describe(answer: DescribeClusterResponse) -> bool:
    """Return True if the visitor may describe the cluster, and so see figures about all topics and groups."""
    return bool(answer.cluster_authorized_operations >> Operation.DESCRIBE & 1)


async def _figures(site: Site) -> dict[str, Any]:
    """Return the lines of each section, or a fault. Rates are those since the reading before."""
    now, before = site.figures
    if now is None or time.monotonic() - now.taken_s >= READ_AGAIN_S:
        try:
            now, before = await read_figures(site.options.metrics), now
        except FiguresUnavailable as error:
            return {"sections": {}, "fault": str(error)}
        site.figures = now, before
    return {"sections": {name: stated(facts, now, before) for name, facts in SECTIONS.items()}, "fault": ""}


async def _directories(client: Client, node_id: int) -> list[dict[str, Any]]:
    """Return the log directories of a broker with their sizes; none if it does not describe them."""
    try:
        answer = await client.request(
            DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse, node_id=node_id
        )
    except KafkaError:
        return []
    return [
        {
            "name": directory.log_dir,
            "is_offline": bool(directory.error_code),
            "partitions": sum(len(topic.partitions) for topic in directory.topics),
            "size": sum(
                partition.partition_size for topic in directory.topics for partition in topic.partitions
            ),
        }
        for directory in answer.results
    ]


async def broker(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the settings of a broker."""
    node_id = request.path_params["node_id"]
    if node_id > MAX_NUMBER or node_id not in visitor.client.brokers:
        raise NotHere(f"There is no broker {str(node_id)[:20]}.")
    settings = await describe_settings(visitor.client, Resource(BROKER, str(node_id)))
    values = {"node_id": node_id, "address": visitor.client.brokers[node_id], "settings": settings}
    return site.render(request, "broker.html", values)


async def access(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the ACLs, the users with SCRAM credentials, and the quotas."""
    acls, acls_fault = [], ""
    try:
        acls = await list_acls(visitor.client, [AclFilter()])
    except KafkaError as error:
        acls_fault = explained(error)
    users: list[dict[str, Any]] = []
    users_fault = ""
    try:
        described = await describe_users(visitor.client)
        users = [
            {"name": name, "mechanisms": [MECHANISMS.get(key, str(key)) for key in sorted(mechanisms)]}
            for name, mechanisms in sorted(described.items())
        ]
    except KafkaError as error:
        users_fault = explained(error)
    quotas: list[dict[str, Any]] = []
    quotas_fault = ""
    try:
        quotas = [
            {
                "text": entity_text(entity),
                "key": key,
                "value": f"{value:,.10g}",
                "plain": f"{value:.10g}",
                "fields": quota_fields(entity, key),
            }
            for entity, found in sorted(
                (await list_quotas(visitor.client, ())).items(), key=lambda each: sort_key(each[0])
            )
            for key, value in sorted(found.items())
        ]
    except KafkaError as error:
        quotas_fault = explained(error)
    values = {
        "acl_fields": acl_fields,
        "quotas": quotas[:MAX_ROWS],
        "quotas_fault": quotas_fault,
        "acls": acls[:MAX_ROWS],
        "left_out": max(len(acls) - MAX_ROWS, 0),
        "acls_fault": acls_fault,
        "users": users[:MAX_ROWS],
        "users_fault": users_fault,
    }
    return site.render(request, "access.html", values)
