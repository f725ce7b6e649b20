"""Client quotas of a broker: those in the store, and how long each client has to wait because of them.

Kafka's rules (KIP-13, 124, 219, 546, 599): the most specific quota of a client's user and client id applies. Clients
for which the same quota is set separately, such as those of a default, have separate meters. The broker answers a
client over its quota immediately, with the time in `throttle_time_ms`, and does not read its connection in that time.

Handlers charge what only they know: produced and fetched bytes, and the partitions that a request creates and deletes.
The server charges the time that each request took (`settle`). Without any quota it asks for `is_enforced` only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import trio
from attrs import define, field, frozen

from korvet.broker.context import RequestContext
from korvet.broker.rates import Meter, Rate, TokenBucket, Window
from korvet.concurrency.task_times import TaskTimes
from korvet.config import Config
from korvet.protocol.errors import ThrottlingQuotaExceeded
from korvet.security.quota_store import QuotaStore
from korvet.security.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    Quotas,
    address_of,
)
from korvet.storage.interface import Storage

# Limit of meters of one key. A meter takes some 3 kB. The meters that were unused for the longest time are dropped.
MOST_METERS = 10_000
# Limit of clients of one key whose quotas are remembered. A client id may have 32 kB.
MOST_CLIENTS = 1_000

#: The user and the client id that share a meter, "" if it does not depend on one of them.
MeterKey = tuple[str, str]
#: A limit, and the key of the meter that measures it.
Found = tuple[float, MeterKey]


@frozen
class Usage:
    """An amount that clients of one process have used of a quota, and the limit that it counts for."""

    quota: str  # its name in Kafka
    key: MeterKey
    limit: float
    amount: float


def applicable(user: str, client_id: str) -> Iterator[tuple[Entity, MeterKey]]:
    """Yield the entities whose quota may apply to a client, the most specific one first, with the key of the meter."""
    if client_id:
        yield ((CLIENT_ID, client_id), (USER, user)), (user, client_id)
        yield ((CLIENT_ID, None), (USER, user)), (user, client_id)
    yield ((USER, user),), (user, "")
    if client_id:
        yield ((CLIENT_ID, client_id), (USER, None)), (user, client_id)
        yield ((CLIENT_ID, None), (USER, None)), (user, client_id)
    yield ((USER, None),), (user, "")
    if client_id:
        yield ((CLIENT_ID, client_id),), ("", client_id)
        yield ((CLIENT_ID, None),), ("", client_id)


@define(eq=False)
class Enforcement:
    """The quotas of one key, and the meters of the clients that have one."""

    make_meter: Callable[[], Meter]
    limits: Mapping[Entity, float] = field(factory=dict)
    unreported: dict[Found, float] | None = None  # amounts that other processes of the broker do not know
    _meters: dict[MeterKey, Meter] = field(factory=dict)  # the last used one is the last
    _found: dict[tuple[str, str | None], Found | None] = field(factory=dict)  # by principal and client id

    def change(self, limits: Mapping[Entity, float]) -> None:
        """Replace the limits."""
        self.limits = limits
        self._found.clear()

    def limit(self, context: RequestContext) -> Found | None:
        """Return the client's limit and the key of its meter, or None without a limit."""
        if not self.limits:
            return None
        client = context.principal, context.client_id
        try:
            return self._found[client]
        except KeyError:
            found = self.first_of(applicable(context.principal.partition(":")[2], context.client_id or ""))
        if len(self._found) >= MOST_CLIENTS:
            self._found.clear()
        self._found[client] = found
        return found

    def first_of(self, entities: Iterable[tuple[Entity, MeterKey]]) -> Found | None:
        """Return the limit and the key of the first entity that has a quota."""
        for entity, key in entities:
            if (limit := self.limits.get(entity)) is not None:
                return limit, key
        return None

    def meter(self, key: MeterKey, now: float) -> Meter:
        """Return the meter of that key. Make one if there is none."""
        meter = self._meters.pop(key, None)
        if meter is None:
            self._drop_unused(now)
            meter = self.make_meter()
        self._meters[key] = meter
        return meter

    def _drop_unused(self, now: float) -> None:
        while self._meters:
            oldest = next(iter(self._meters))
            if len(self._meters) < MOST_METERS and not self._meters[oldest].is_idle(now):
                return
            del self._meters[oldest]

    def charge(self, context: RequestContext, amount: float) -> float:
        """Record an amount, and return for how many seconds the client has to wait."""
        return self.add(self.limit(context), amount)

    def add(self, found: Found | None, amount: float) -> float:
        """Record an amount at the meter that was found, and return for how many seconds to wait."""
        if found is None:
            return 0.0
        limit, key = found
        now = trio.current_time()
        meter = self.meter(key, now)
        meter.record(amount, limit, now)
        self._remember(found, amount)
        return meter.excess_s(limit, now)

    def add_reported(self, usage: Usage) -> None:
        """Record what clients of another process have used."""
        now = trio.current_time()
        self.meter(usage.key, now).record(usage.amount, usage.limit, now)

    def _remember(self, found: Found, amount: float) -> None:
        if self.unreported is not None and (found in self.unreported or len(self.unreported) < MOST_METERS):
            self.unreported[found] = self.unreported.get(found, 0.0) + amount

    def charge_if_kept(self, context: RequestContext, amount: float) -> float:
        """Record an amount if the limit is kept. If it is not, return for how many seconds the client has to wait."""
        if (found := self.limit(context)) is None:
            return 0.0
        limit, key = found
        now = trio.current_time()
        meter = self.meter(key, now)
        excess_s = meter.excess_s(limit, now)
        if not excess_s:
            meter.record(amount, limit, now)
            self._remember(found, amount)
        return excess_s


@define(eq=False)
class ClientQuotas:
    """The stored quotas, and their enforcement."""

    _storage: Storage
    _config: Config
    stored: QuotaStore = field(init=False)
    is_enforced: bool = False  # a user or client id has a quota
    measures_times: bool = False  # the time for which tasks run is charged to the clients that they serve
    _window: Window = field(init=False)
    _keys: Mapping[str, Enforcement] = field(init=False)
    _connections: Enforcement = field(init=False)  # of addresses
    _times: TaskTimes | None = None  # while a client's time is limited

    def __attrs_post_init__(self) -> None:
        config = self._config
        self.stored = QuotaStore(self._storage, self._changed)
        self._window = Window(config.quota_window_num, config.quota_window_size_seconds)
        mutations = Window(config.controller_quota_window_num, config.controller_quota_window_size_seconds)
        self._keys = {
            PRODUCER_BYTE_RATE: Enforcement(lambda: Rate(self._window)),
            CONSUMER_BYTE_RATE: Enforcement(lambda: Rate(self._window)),
            REQUEST_PERCENTAGE: Enforcement(lambda: Rate(self._window)),
            CONTROLLER_MUTATION_RATE: Enforcement(lambda: TokenBucket(mutations)),
        }

        self._connections = Enforcement(lambda: Rate(self._window))

    async def run(self) -> None:
        """Follow the stored quotas until cancelled."""
        try:
            await self.stored.run()
        finally:
            self._measure_times(is_needed=False)

    def _changed(self, quotas: Quotas) -> None:
        for key, enforcement in self._keys.items():
            enforcement.change({entity: values[key] for entity, values in quotas.items() if key in values})
        self._connections.change(
            {
                ((IP, address_of(entity)),): values[CONNECTION_CREATION_RATE]
                for entity, values in quotas.items()
                if CONNECTION_CREATION_RATE in values
            }
        )
        self.is_enforced = any(enforcement.limits for enforcement in self._keys.values())
        self._measure_times(is_needed=bool(self._keys[REQUEST_PERCENTAGE].limits))

    def _measure_times(self, *, is_needed: bool) -> None:
        self.measures_times = is_needed
        if is_needed and self._times is None:
            self._times = TaskTimes()
            trio.lowlevel.add_instrument(self._times)
        elif not is_needed and self._times is not None:
            trio.lowlevel.remove_instrument(self._times)
            self._times = None

    # --- For the other processes of the broker -----------------------------------------------------------

    @property
    def _enforcements(self) -> Mapping[str, Enforcement]:
        return {**self._keys, CONNECTION_CREATION_RATE: self._connections}

    def share(self) -> None:
        """Collect usage for `take_usage` from now on."""
        for enforcement in self._enforcements.values():
            enforcement.unreported = {}

    def take_usage(self) -> list[Usage]:
        """Return what the clients of this process have used since the last call."""
        taken = []
        for name, enforcement in self._enforcements.items():
            if unreported := enforcement.unreported:
                taken += [Usage(name, key, limit, amount) for (limit, key), amount in unreported.items()]
                enforcement.unreported = {}
        return taken

    def add_usage(self, reported: Iterable[Usage]) -> None:
        """Count what the clients of another process have used."""
        enforcements = self._enforcements
        for usage in reported:
            enforcements[usage.quota].add_reported(usage)

    # --- For handlers -----------------------------------------------------------------------------------

    def produced(self, context: RequestContext, *, is_time_exempt: bool) -> None:
        """Charge the bytes of a Produce, and the time of one that has a response."""
        self._throttle(context, self._keys[PRODUCER_BYTE_RATE].charge(context, context.request_bytes))
        if is_time_exempt:
            self.exempt(context)

    def most_fetched(self, context: RequestContext) -> float:
        """Return how many bytes the client may fetch without being throttled for them alone."""
        found = self._keys[CONSUMER_BYTE_RATE].limit(context)
        return float("inf") if found is None else max(found[0] * self._window.complete_s, 1)

    def fetched(self, context: RequestContext, size: Callable[[], int]) -> bool:
        """Charge the bytes and the time of a Fetch. Return False if the client must get no records.

        `size` returns the bytes of the response; it is called only if the client has a quota.
        """
        fetches = self._keys[CONSUMER_BYTE_RATE]
        found = fetches.limit(context)
        charged = 0 if found is None else size()
        self._throttle(context, fetches.add(found, charged))
        self._charge_time(context)
        if context.throttle_ms:
            fetches.add(found, -charged)
        return not context.throttle_ms

    def mutated(self, context: RequestContext, partitions: int, *, is_strict: bool) -> None:
        """Charge partitions that are about to be created or deleted.

        If the quota is strict and exhausted, raise ThrottlingQuotaExceeded. Otherwise throttle the client, as versions
        without that error require.
        """
        mutations = self._keys[CONTROLLER_MUTATION_RATE]
        if not is_strict:
            self._throttle(context, mutations.charge(context, partitions))
        elif excess_s := mutations.charge_if_kept(context, partitions):
            self._throttle(context, excess_s)
            raise ThrottlingQuotaExceeded

    def exempt(self, context: RequestContext) -> None:
        """Charge no time for a request."""
        if self._times is not None:
            self._times.take()
        context.is_time_charged = True

    # --- For the server ---------------------------------------------------------------------------------

    def settle(self, context: RequestContext) -> int:
        """Charge the time of a request, unless that was done, and return for how many ms to throttle the client."""
        self._charge_time(context)
        return context.throttle_ms

    def connected(self, address: str) -> float:
        """Charge a connection from an address and return 0. If it is above its quota, return when to close it instead.

        The time is in seconds.
        """
        key = address, ""
        found = self._connections.first_of(((((IP, address),), key), (((IP, None),), key)))
        excess_s = self._connections.add(found, 1)
        if excess_s:
            self._connections.add(found, -1)
        return min(excess_s, self._window.sample_s)

    def worked(self, context: RequestContext) -> None:
        """Charge the time that the current task has worked for a client, without throttling it."""
        if self._times is not None:
            self._keys[REQUEST_PERCENTAGE].charge(context, self._times.take() * 100)

    def _charge_time(self, context: RequestContext) -> None:
        if self._times is None or context.is_time_charged:
            return
        context.is_time_charged = True
        excess_s = self._keys[REQUEST_PERCENTAGE].charge(context, self._times.take() * 100)
        self._throttle(context, min(excess_s, self._window.sample_s))

    def _throttle(self, context: RequestContext, throttle_s: float) -> None:
        if throttle_s:
            context.throttle_ms = max(context.throttle_ms, round(throttle_s * 1000))
