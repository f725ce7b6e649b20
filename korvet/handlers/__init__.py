"""The APIs that korvet serves: one module per API, and the table of all APIs.

`APIS` is the only list. ApiVersions, dispatch, the README's table and the tests derive from it, so that korvet
advertises exactly what it serves: clients fall back if an API is missing, and fail if an advertised API does not work.

`apis_on` leaves out what a store without transactions cannot serve.

A handler is `async def handle(broker, request, context)`, or a plain function that returns the response, a
PendingResponse, or a coroutine for what has to be waited for. It takes and returns messages of the version that the
codec has read. It reports errors of a topic, partition or group in its `error_code`, and raises only `Disconnect`.

Handlers and messages are imported on first use, because importing all of them would take as long as the rest of a
broker's start, and 8 MB of memory. Once the broker serves, `Apis.load` imports those that most clients use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import trio
from attrs import evolve

from korvet.handlers.api_versions import NOT_SERVED, Served, handler
from korvet.protocol.connection import Api
from korvet.protocol.requests import API_VERSIONS
from korvet.storage.interface import StorageInfo

# Pauses before the first import, since clients connect after the start, and between two imports.
LOAD_AFTER_S = 1.0
LOAD_PAUSE_S = 0.02
# The APIs of producers and consumers: Produce to Metadata, OffsetCommit to SyncGroup, ApiVersions, InitProducerId, and
# ConsumerGroupHeartbeat.
USUAL = frozenset({*range(4), *range(8, 15), 18, 22, 68})


class Apis(Mapping[int, Api]):
    """A mapping of API keys to APIs, in the order of the keys."""

    def __init__(self, *served: Served) -> None:
        self.served = served
        self._served = {each.key: each for each in served}
        self._apis: dict[int, Api] = {}

    def __getitem__(self, key: int) -> Api:
        api = self._apis.get(key)
        if api is None:
            api = self._apis[key] = self._api(self._served[key])
        return api

    def get(self, key: int, default: Any = None) -> Any:
        """Return an API; a fast path, since this is called for each request."""
        return self._apis.get(key) or super().get(key, default)

    def __iter__(self) -> Iterator[int]:
        return iter(self._served)

    def __len__(self) -> int:
        return len(self._served)

    def _api(self, served: Served) -> Api:
        """Import the messages and the handler of an API."""
        module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", served.name).lower()
        messages = import_module(f"korvet.protocol.messages.{module}")
        if served.key == API_VERSIONS:
            handle = handler(self.served)
        else:
            handle = import_module(f"korvet.handlers.{module}").handle
        return Api(
            served.key,
            served.name,
            getattr(messages, served.name + "Request"),
            getattr(messages, served.name + "Response"),
            served.min_version,
            served.max_version,
            served.advertised_min_version,
            handle,
        )

    async def load(self) -> None:
        """Import the usual APIs that no client has used yet, one after the other."""
        # In a thread, since an import takes some milliseconds.
        await trio.sleep(LOAD_AFTER_S)
        for key in self:
            if key in USUAL and key not in self._apis:
                await trio.to_thread.run_sync(self.__getitem__, key)
                await trio.sleep(LOAD_PAUSE_S)


#: All APIs that korvet serves on a store that serves transactions.
APIS = Apis(
    Served(0, "Produce", 3, 13, advertised_min_version=0, without_transactions=11),
    Served(1, "Fetch", 4, 18),
    Served(2, "ListOffsets", 1, 11),
    Served(3, "Metadata", 0, 13),
    Served(8, "OffsetCommit", 2, 10),
    Served(9, "OffsetFetch", 1, 10),
    Served(10, "FindCoordinator", 0, 6),
    Served(11, "JoinGroup", 0, 9),
    Served(12, "Heartbeat", 0, 4),
    Served(13, "LeaveGroup", 0, 5),
    Served(14, "SyncGroup", 0, 5),
    Served(15, "DescribeGroups", 0, 6),
    Served(16, "ListGroups", 0, 5),
    Served(17, "SaslHandshake", 0, 1),
    Served(18, "ApiVersions", 0, 5),
    Served(19, "CreateTopics", 2, 7),
    Served(20, "DeleteTopics", 1, 6),
    Served(21, "DeleteRecords", 0, 2),
    Served(22, "InitProducerId", 0, 5),
    Served(23, "OffsetForLeaderEpoch", 2, 4),
    Served(24, "AddPartitionsToTxn", 0, 5, without_transactions=NOT_SERVED),
    Served(25, "AddOffsetsToTxn", 0, 4, without_transactions=NOT_SERVED),
    Served(26, "EndTxn", 0, 5, without_transactions=NOT_SERVED),
    Served(27, "WriteTxnMarkers", 1, 2, without_transactions=NOT_SERVED),
    Served(28, "TxnOffsetCommit", 0, 6, without_transactions=NOT_SERVED),
    Served(29, "DescribeAcls", 1, 3),
    Served(30, "CreateAcls", 1, 3),
    Served(31, "DeleteAcls", 1, 3),
    Served(32, "DescribeConfigs", 1, 4),
    Served(33, "AlterConfigs", 0, 2),
    Served(34, "AlterReplicaLogDirs", 1, 2),
    Served(35, "DescribeLogDirs", 1, 5),
    Served(36, "SaslAuthenticate", 0, 2),
    Served(37, "CreatePartitions", 0, 3),
    Served(42, "DeleteGroups", 0, 3),
    Served(43, "ElectLeaders", 0, 2),
    Served(44, "IncrementalAlterConfigs", 0, 1),
    Served(45, "AlterPartitionReassignments", 0, 1),
    Served(46, "ListPartitionReassignments", 0, 0),
    Served(47, "OffsetDelete", 0, 0),
    Served(48, "DescribeClientQuotas", 0, 1),
    Served(49, "AlterClientQuotas", 0, 1),
    Served(50, "DescribeUserScramCredentials", 0, 0),
    Served(51, "AlterUserScramCredentials", 0, 0),
    Served(55, "DescribeQuorum", 0, 2),
    Served(57, "UpdateFeatures", 0, 2),
    Served(60, "DescribeCluster", 0, 2),
    Served(61, "DescribeProducers", 0, 0, without_transactions=NOT_SERVED),
    Served(65, "DescribeTransactions", 0, 0, without_transactions=NOT_SERVED),
    Served(66, "ListTransactions", 0, 2, without_transactions=NOT_SERVED),
    Served(68, "ConsumerGroupHeartbeat", 0, 1),
    Served(69, "ConsumerGroupDescribe", 0, 1),
    Served(74, "ListConfigResources", 0, 1),
    Served(75, "DescribeTopicPartitions", 0, 0),
    Served(76, "ShareGroupHeartbeat", 1, 1),
    Served(77, "ShareGroupDescribe", 1, 1),
    Served(78, "ShareFetch", 1, 2),
    Served(79, "ShareAcknowledge", 1, 2),
    Served(90, "DescribeShareGroupOffsets", 0, 1),
    Served(91, "AlterShareGroupOffsets", 0, 0),
    Served(92, "DeleteShareGroupOffsets", 0, 0),
)


def apis_on(store: StorageInfo, apis: Mapping[int, Api] = APIS) -> Mapping[int, Api]:
    """Return those of the APIs, in those versions, that a broker on the store serves."""
    return apis if store.serves_transactions else WithoutTransactions(apis)


class WithoutTransactions(Mapping[int, Api]):
    """The APIs of another table on a store that does not serve transactions."""

    def __init__(self, apis: Mapping[int, Api]) -> None:
        self._all = apis
        self._limits = {each.key: each.without_transactions for each in APIS.served}
        self._keys = [key for key in apis if self._limits[key] != NOT_SERVED]
        self._apis: dict[int, Api] = {}

    def __getitem__(self, key: int) -> Api:
        api = self._apis.get(key)
        if api is None:
            if self._limits.get(key, NOT_SERVED) == NOT_SERVED:
                raise KeyError(key)
            api = self._apis[key] = self._limited(self._all[key])
        return api

    def get(self, key: int, default: Any = None) -> Any:
        """Return an API; a fast path, since this is called for each request."""
        return self._apis.get(key) or super().get(key, default)

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def _limited(self, api: Api) -> Api:
        limit = self._limits[api.key]
        return api if limit == api.max_version else evolve(api, max_version=limit)
