from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from korvet.protocol.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    TransactionAbortable,
)
from korvet.transactions.document import NO_EPOCH, NO_ID, Partition, State, Transaction
from korvet.transactions.machine import (
    Add,
    Complete,
    Decision,
    End,
    Event,
    Init,
    ProducerIdNeeded,
    TakeOver,
    TimeOut,
    Verify,
    decide,
    missing,
)

TIMEOUT_MS = 60_000
NOW_MS = 1_763_666_000_000
FRESH = 500
ORDERS, OTHERS = (Partition("orders", number, UUID(int=1)) for number in (0, 1))

#: The intended differences from Kafka (see `korvet.transactions.machine`): the answer in Kafka, and in korvet.
DIFFERENT = {
    ("CompleteAbort", "EndTxn v5 commit stored-1"): ("INVALID_TXN_STATE", "PRODUCER_FENCED"),
}


def played(*events: Event, transaction: Transaction | None = None, first_id: int = 7) -> Transaction:
    """Return the state after events, whose answers do not matter."""
    for event in events:
        transaction = decide(transaction, event, NOW_MS, fresh_id=first_id).state
    assert transaction is not None
    return transaction


def in_state(kind: str) -> Transaction:
    """Return the state that the experiment had before its events; the epochs are the same."""
    init = Init(timeout_ms=TIMEOUT_MS)
    state = played(init, init)
    if kind == "Empty":
        return played(init, transaction=state)
    if kind == "Empty by expected":
        expected = evolve(init, expected=(state.producer_id, state.producer_epoch))
        return played(expected, transaction=state)
    state = played(adding(state, 0), transaction=state)
    if kind == "Ongoing":
        return state
    name, how = kind.split()
    if how == "fence":
        state = played(init, transaction=state)
    elif how == "timeout":
        state = decide(state, TimeOut(), NOW_MS + TIMEOUT_MS).state
    else:
        state = played(ending(state, 0, name.endswith("Commit"), int(how[2:])), transaction=state)
    return state if name.startswith("Prepare") else played(Complete(state.number), transaction=state)


def adding(state: Transaction, raised: int) -> Add:
    return Add(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch + raised,
        partitions=frozenset([ORDERS]),
    )


def ending(state: Transaction, raised: int, is_commit: bool, version: int) -> End:
    return End(
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch + raised,
        is_commit=is_commit,
        version=version,
    )


def event_of(text: str, state: Transaction) -> Event:
    """Return the event that a line of the experiment names."""
    words = text.split()
    other = 1000 if words[-1] == "id" else 0
    raised = int(words[-1].removeprefix("stored")) if words[-1].startswith("stored") else 0
    producer_id, epoch = state.producer_id + other, state.producer_epoch + raised
    match words[0]:
        case "Init":
            return Init(timeout_ms=TIMEOUT_MS, expected=None if len(words) == 1 else (producer_id, epoch))
        case "EndTxn":
            end = ending(state, raised, words[2] == "commit", 1 if words[1] == "v4" else 2)
            return evolve(end, producer_id=producer_id)
        case "add":
            return evolve(adding(state, raised), producer_id=producer_id)
        case "AddOffsets":
            return evolve(adding(state, raised), partitions=frozenset(), groups=frozenset("g"))
        case "verify":
            return Verify(producer_id=producer_id, producer_epoch=epoch, partitions=frozenset([ORDERS]))
    raise ValueError(text)


def answer_to(state: Transaction, event: Event) -> tuple[str, Transaction]:
    """Return the answer in the notation of the experiment, and the state afterwards."""
    try:
        decision = decide(state, event, NOW_MS, fresh_id=FRESH)
    except KafkaError as error:
        return error.error_code.name, state
    if decision.error is not None:
        return decision.error.error_code.name, decision.state
    has_epoch = isinstance(event, Init) or (isinstance(event, End) and event.version > 1)
    return f"NONE e{decision.producer_epoch}" if has_epoch else "NONE", decision.state


FACTS = [
    tuple(part.strip() for part in line.split("|"))
    for line in Path(__file__).with_name("apache_kafka.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize("kind", dict.fromkeys(fact[0] for fact in FACTS))
def test_every_event_is_answered_as_by_apache_kafka(kind: str) -> None:
    state = in_state(kind)
    for _, event, answer, after in (fact for fact in FACTS if fact[0] == kind):
        kafkas, ours = DIFFERENT.get((kind.split(maxsplit=1)[0], event), (answer, answer))
        found, left = answer_to(state, event_of(event, state))

        assert kafkas == answer, event
        assert (ours, after) == (found, f"{left.state.value} e{left.producer_epoch}"), event


# --- Epochs that end -------------------------------------------------------------------------------------------


def at_epoch(epoch: int, *events: Event) -> Transaction:
    return played(*events, transaction=evolve(in_state("Empty"), producer_epoch=epoch, last_epoch=NO_EPOCH))


def ids(decision: Decision) -> tuple[int, int]:
    return decision.producer_id, decision.producer_epoch


def completed(state: Transaction) -> Transaction:
    return played(Complete(state.number), transaction=state)


def test_fence_at_epoch_32765_is_followed_by_another_id() -> None:
    state = at_epoch(32765)
    state = played(adding(state, 0), transaction=state)
    fenced = decide(state, Init(timeout_ms=TIMEOUT_MS), NOW_MS)

    assert (fenced.error, fenced.state.state) == (ConcurrentTransactions, State.PREPARE_ABORT)
    assert (7, 32766, NO_ID) == (
        fenced.state.producer_id,
        fenced.state.producer_epoch,
        fenced.state.next_id,
    )
    assert (7, 32766) == ids_of(completed(fenced.state))
    initialized = decide(completed(fenced.state), Init(timeout_ms=TIMEOUT_MS), NOW_MS, fresh_id=FRESH)
    assert (FRESH, 0) == ids(initialized)


def ids_of(state: Transaction) -> tuple[int, int]:
    return state.producer_id, state.producer_epoch


@pytest.mark.parametrize("event", [Init(timeout_ms=TIMEOUT_MS), TimeOut()])
def test_fence_at_epoch_32766_replaces_the_id_when_it_is_complete(event: Event) -> None:
    state = at_epoch(32766)
    state = played(adding(state, 0), transaction=state)
    with pytest.raises(ProducerIdNeeded):
        decide(state, event, NOW_MS + TIMEOUT_MS)
    fenced = decide(state, event, NOW_MS + TIMEOUT_MS, fresh_id=FRESH).state

    assert (7, 32767, FRESH) == (fenced.producer_id, fenced.producer_epoch, fenced.next_id)
    assert (FRESH, 0) == ids_of(completed(fenced))
    assert (FRESH, 1) == ids(decide(completed(fenced), Init(timeout_ms=TIMEOUT_MS), NOW_MS))


def test_end_at_epoch_32765_raises_it_once_more() -> None:
    state = at_epoch(32765)
    state = played(adding(state, 0), transaction=state)
    prepared = decide(state, ending(state, 0, True, 2), NOW_MS)

    assert (7, 32766) == ids(prepared) == ids_of(completed(prepared.state))
    repeated = decide(completed(prepared.state), ending(state, 0, True, 2), NOW_MS)
    assert (7, 32766) == ids(repeated)


def test_end_at_epoch_32766_answers_with_the_next_id() -> None:
    state = at_epoch(32766)
    state = played(adding(state, 0), transaction=state)
    commit = ending(state, 0, True, 2)
    with pytest.raises(ProducerIdNeeded):
        decide(state, commit, NOW_MS)
    prepared = decide(state, commit, NOW_MS, fresh_id=FRESH)
    after = completed(prepared.state)

    assert ((FRESH, 0), (7, 32767)) == (ids(prepared), ids_of(prepared.state))
    assert (FRESH, 0) == ids_of(after) == ids(decide(after, commit, NOW_MS))
    with pytest.raises(InvalidTxnState):
        decide(after, ending(state, 0, False, 2), NOW_MS)
    expected = Init(timeout_ms=TIMEOUT_MS, expected=(7, 32766))
    assert (FRESH, 0) == ids(decide(after, expected, NOW_MS))
    begun = played(adding(after, 0), transaction=after)
    ended = completed(played(ending(begun, 0, True, 2), transaction=begun))
    assert (FRESH, 1) == ids_of(ended)
    with pytest.raises(InvalidProducerIdMapping):
        decide(ended, commit, NOW_MS)


def test_end_of_version_1_at_epoch_32766_leaves_it() -> None:
    state = at_epoch(32766)
    state = played(adding(state, 0), transaction=state)
    after = completed(played(ending(state, 0, True, 1), transaction=state))

    assert (State.COMPLETE_COMMIT, (7, 32766)) == (after.state, ids_of(after))
    assert (FRESH, 0) == ids(decide(after, Init(timeout_ms=TIMEOUT_MS), NOW_MS, fresh_id=FRESH))


def test_producer_goes_on_with_another_id_when_its_epochs_end() -> None:
    state = at_epoch(32765)
    expected = Init(timeout_ms=TIMEOUT_MS, expected=(7, 32765))
    raised = decide(state, expected, NOW_MS)
    repeated = decide(raised.state, expected, NOW_MS)  # UNKNOWN_SERVER_ERROR in Kafka
    exhausted = evolve(expected, expected=(7, 32766))
    rotated = decide(raised.state, exhausted, NOW_MS, fresh_id=FRESH)

    assert [(7, 32766), (7, 32766), (FRESH, 0)] == [ids(each) for each in (raised, repeated, rotated)]
    for _ in range(2):
        rotated = decide(rotated.state, exhausted, NOW_MS)
        assert (FRESH, 0) == ids(rotated)
    for other in ((7, 32765), (7, 32767), (8, 32766)):
        with pytest.raises(ProducerFenced):
            decide(rotated.state, evolve(expected, expected=other), NOW_MS)


# --- Beginning, timing out, another owner ----------------------------------------------------------------------


def test_first_request_creates_the_id_whatever_it_expects() -> None:
    with pytest.raises(ProducerIdNeeded):
        decide(None, Init(timeout_ms=TIMEOUT_MS), NOW_MS)
    created = decide(None, Init(timeout_ms=TIMEOUT_MS, expected=(5, 3)), NOW_MS, fresh_id=FRESH)

    assert (FRESH, 0) == ids(created)


@pytest.mark.parametrize("event", [adding(in_state("Empty"), 0), ending(in_state("Empty"), 0, True, 2)])
def test_unknown_id_has_no_producer(event: Event) -> None:
    with pytest.raises(InvalidProducerIdMapping):
        decide(None, event, NOW_MS)


def test_number_rises_when_a_transaction_begins_and_not_before_the_next() -> None:
    state = in_state("Empty")
    numbers = [state.number]
    for version in (1, 2, 2):
        for events in ([adding(state, 0)], [evolve(adding(state, 0), groups=frozenset("g"))]):
            state = played(*events, transaction=state)
            numbers.append(state.number)
        state = played(ending(state, 0, True, version), Complete(state.number), transaction=state)
    empty = decide(state, ending(state, 0, False, 2), NOW_MS).state

    assert [0, 1, 1, 2, 2, 3, 3] == numbers
    assert (4, State.PREPARE_ABORT, frozenset()) == (empty.number, empty.state, empty.partitions)


def test_add_of_what_is_in_the_transaction_saves_nothing() -> None:
    state = in_state("Ongoing")

    assert decide(state, adding(state, 0), NOW_MS + 5).state is state


def test_missing_partitions_and_groups_are_found() -> None:
    state = played(
        evolve(adding(in_state("Ongoing"), 0), groups=frozenset("g")), transaction=in_state("Ongoing")
    )

    assert {OTHERS, "h"} == missing(state, frozenset([ORDERS, OTHERS]), frozenset("gh"))
    assert {ORDERS} == missing(in_state("PrepareAbort fence"), frozenset([ORDERS]))


def test_transaction_times_out_once() -> None:
    state = in_state("Ongoing")

    assert decide(state, TimeOut(), NOW_MS + TIMEOUT_MS - 1).state is state
    aborted = decide(state, TimeOut(), NOW_MS + TIMEOUT_MS).state
    assert (State.PREPARE_ABORT, 2, state.partitions) == (
        aborted.state,
        aborted.producer_epoch,
        aborted.partitions,
    )
    for after in (aborted, completed(aborted)):
        assert decide(after, TimeOut(), NOW_MS + 9 * TIMEOUT_MS).state is after


def test_completion_of_an_earlier_transaction_changes_nothing() -> None:
    prepared = in_state("PrepareCommit TV2")

    assert decide(prepared, Complete(prepared.number - 1), NOW_MS).state is prepared
    assert decide(completed(prepared), Complete(prepared.number), NOW_MS).state is not prepared
    ongoing = in_state("Ongoing")
    assert decide(ongoing, Complete(ongoing.number), NOW_MS).state is ongoing


def test_new_owner_only_raises_the_coordinator_epoch() -> None:
    state = in_state("PrepareCommit TV2")

    assert evolve(state, coordinator_epoch=1) == decide(state, TakeOver(), NOW_MS).state


# --- A store that went back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_what_may_have_lost_records_is_not_committed(version: int) -> None:
    empty = in_state("Empty")
    state = played(evolve(adding(empty, 0), server="a"), transaction=empty)
    commit = evolve(ending(state, 0, True, version), server="b")

    with pytest.raises(TransactionAbortable):
        decide(state, commit, NOW_MS)
    old = decide(state, evolve(commit, can_abort=False), NOW_MS)
    assert (ProducerFenced, State.PREPARE_ABORT, 3) == (
        old.error,
        old.state.state,
        old.state.producer_epoch,
    )
    for survivor in ("a", None):
        prepared = decide(state, evolve(commit, server=survivor), NOW_MS).state
        assert prepared.state is State.PREPARE_COMMIT
    aborted = decide(state, evolve(commit, is_commit=False), NOW_MS).state
    assert aborted.state is State.PREPARE_ABORT


# --- Any order of events ---------------------------------------------------------------------------------------


class Producers(RuleBasedStateMachine):
    """Producers, a coordinator, and other processes that add partitions by documents that may be out of date.

    Each producer knows the id and epoch of its last answer. The store refuses a save that began with another version.
    """

    def __init__(self) -> None:
        super().__init__()
        self.versions: list[Transaction] = []
        self.now_ms = NOW_MS
        self.next_id = 0
        self.known: dict[int, tuple[int, int]] = {}  # by producer
        self.given: set[tuple[int, int]] = set()
        self.ends: dict[int, set[State]] = {}  # by number of the transaction

    @property
    def stored(self) -> Transaction | None:
        return self.versions[-1] if self.versions else None

    def apply(self, event: Event, behind: int = 0) -> Decision | KafkaError:
        """Decide by a version that may be `behind`; decide again until the version is the stored one."""
        while True:
            at = max(len(self.versions) - 1 - behind, 0)
            state = self.versions[at] if self.versions else None
            answer = self.decide(state, event)
            if state is self.stored:
                break
            behind = 0  # the save conflicts, or the version is found to be old
        if isinstance(answer, Decision) and answer.state is not self.stored:
            self.save(answer.state)
        return answer

    def decide(self, state: Transaction | None, event: Event) -> Decision | KafkaError:
        try:
            try:
                return decide(state, event, self.now_ms)
            except ProducerIdNeeded:
                self.next_id += 1
                return decide(state, event, self.now_ms, fresh_id=self.next_id)
        except KafkaError as error:
            return error

    def save(self, state: Transaction) -> None:
        before = self.stored
        self.versions.append(state)
        if state.is_prepared:
            self.ends.setdefault(state.number, set()).add(state.state)
        if before is not None:
            assert state.number in (before.number, before.number + 1)
            assert state.coordinator_epoch >= before.coordinator_epoch
            if state.producer_id == before.producer_id:
                assert state.producer_epoch >= before.producer_epoch
            if before.is_prepared:
                assert state.state is before.state or not state.is_prepared
                assert state.number == before.number

    @rule(who=st.integers(0, 1), does_expect=st.booleans(), behind=st.integers(0, 3))
    def initialize(self, who: int, does_expect: bool, behind: int) -> None:
        expected = self.known.get(who) if does_expect else None
        answer = self.apply(Init(timeout_ms=TIMEOUT_MS, expected=expected), behind)
        if isinstance(answer, Decision) and answer.error is None:
            got = ids(answer)
            # Only a producer that repeats its request gets an epoch again.
            assert got not in self.given or expected is not None
            self.given.add(got)
            self.known[who] = got

    @rule(who=st.integers(0, 1), partition=st.sampled_from([ORDERS, OTHERS]), behind=st.integers(0, 3))
    def add(self, who: int, partition: Partition, behind: int) -> None:
        if who not in self.known:
            return
        producer_id, epoch = self.known[who]
        event = Add(producer_id=producer_id, producer_epoch=epoch, partitions=frozenset([partition]))
        answer = self.apply(event, behind)
        if isinstance(answer, Decision):
            assert self.stored is not None
            assert partition in self.stored.partitions
            assert self.known[who] == ids_of(self.stored)

    @rule(
        who=st.integers(0, 1),
        is_commit=st.booleans(),
        version=st.sampled_from([1, 2]),
        behind=st.integers(0, 3),
        is_lost=st.booleans(),
    )
    def end(self, who: int, is_commit: bool, version: int, behind: int, is_lost: bool) -> None:
        if who not in self.known:
            return
        producer_id, epoch = self.known[who]
        event = End(producer_id=producer_id, producer_epoch=epoch, is_commit=is_commit, version=version)
        answer = self.apply(event, behind)
        if isinstance(answer, Decision) and answer.error is None:
            assert self.stored is not None
            assert self.stored.state.value.endswith("Commit" if is_commit else "Abort")
            if version > 1 and not is_lost:
                self.known[who] = ids(answer)

    @rule(behind=st.integers(0, 3))
    def complete(self, behind: int) -> None:
        if self.versions:
            at = max(len(self.versions) - 1 - behind, 0)
            self.apply(Complete(self.versions[at].number), behind)

    @rule(waited_ms=st.sampled_from([1, TIMEOUT_MS]), behind=st.integers(0, 3))
    @precondition(lambda self: self.versions)
    def time_out(self, waited_ms: int, behind: int) -> None:
        self.now_ms += waited_ms
        self.apply(TimeOut(), behind)

    @rule()
    @precondition(lambda self: self.versions)
    def take_over(self) -> None:
        self.apply(TakeOver())

    @rule()
    @precondition(lambda self: self.stored is not None and not self.stored.is_prepared)
    def exhaust(self) -> None:
        """Let nearly all epochs of the id pass, unknown to its producers."""
        assert self.stored is not None
        epoch = max(self.stored.producer_epoch, 32765)
        self.versions.append(evolve(self.stored, producer_epoch=epoch, last_epoch=NO_EPOCH))
        self.known = {who: ids_of(self.versions[-1]) for who in self.known}
        self.given.add(ids_of(self.versions[-1]))

    @invariant()
    def transactions_end_in_one_way(self) -> None:
        assert all(len(ends) == 1 for ends in self.ends.values())

    @invariant()
    def state_is_consistent(self) -> None:
        state = self.stored
        if state is None:
            return
        assert 0 <= state.producer_epoch <= 32767
        assert (state.producer_epoch == 32767) == (state.next_id != NO_ID)
        assert state.is_prepared or state.next_id == NO_ID
        if state.state is not State.ONGOING and not state.is_prepared:
            assert not state.partitions
            assert not state.groups
        assert state.started_ms >= 0 or state.state is State.EMPTY


TestProducers = Producers.TestCase
TestProducers.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.sampled_from([fact[0] for fact in FACTS]), st.sampled_from([fact[1] for fact in FACTS]))
def test_refusals_change_nothing(kind: str, text: str) -> None:
    state = in_state(kind)
    _, left = answer_to(state, event_of(text, state))

    assert left.number in (state.number, state.number + 1)
    assert left.coordinator_epoch == state.coordinator_epoch
