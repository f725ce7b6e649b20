from __future__ import annotations

import itertools
from uuid import UUID

import pytest

from korvet.groups.reconciliation import Aim, Current, MemberState, Owners, reconciled

T, U = UUID(int=1), UUID(int=2)
STABLE, UNREVOKED, UNRELEASED = MemberState
NONE: frozenset[int] = frozenset()


def current(state: MemberState = STABLE, epoch: int = 5, assigned: str = "", revoking: str = "") -> Current:
    """Partitions of T, as digits, which the member was granted at epoch 3."""
    sides = [{T: {int(digit): 3 for digit in side}} if side else {} for side in (assigned, revoking)]
    return Current(state, epoch, epoch, *sides)


def aim(
    target: str, owned: str | None = None, *, epoch: int = 6, subscribed: str = "t", changed: bool = False
) -> Aim:
    topics = {T} if subscribed else set[UUID]()
    reported = None if owned is None else {T: frozenset(map(int, owned))}
    return Aim(epoch, {T: frozenset(map(int, target))} if target else {}, topics, reported, changed)


def owners(**partitions: str) -> Owners:
    result = Owners()
    for member_id, digits in partitions.items():
        result.replace(member_id, Current(), current(assigned=digits))
    return result


def text(state: Current) -> tuple[str, int, str, str]:
    assigned, revoking = (
        "".join(map(str, sorted(side.get(T, {})))) for side in (state.assigned, state.revoking)
    )
    return state.state.value, state.epoch, assigned, revoking


# --- Examples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before, to, others, after",
    [
        pytest.param(current(assigned="01"), aim("01"), "", ("stable", 6, "01", ""), id="nothing moves"),
        pytest.param(current(assigned="01"), aim("0"), "", ("unrevoked", 5, "0", "1"), id="revoke"),
        pytest.param(current(assigned="01"), aim("0", "0"), "", ("stable", 6, "0", ""), id="already revoked"),
        pytest.param(current(assigned="0"), aim("012"), "", ("stable", 6, "012", ""), id="grant"),
        pytest.param(current(assigned="0"), aim("012"), "2", ("unreleased", 6, "01", ""), id="withhold"),
        pytest.param(current(assigned="0"), aim("02"), "2", ("unreleased", 6, "0", ""), id="withhold all"),
        pytest.param(
            current(assigned="01"), aim("12"), "", ("unrevoked", 5, "1", "0"), id="revoke before grant"
        ),
        pytest.param(
            current(UNREVOKED, assigned="0", revoking="1"),
            aim("0", "01"),
            "",
            ("unrevoked", 5, "0", "1"),
            id="still owned",
        ),
        pytest.param(
            current(UNREVOKED, assigned="0", revoking="1"),
            aim("0"),
            "",
            ("unrevoked", 5, "0", "1"),
            id="no report",
        ),
        pytest.param(
            current(UNREVOKED, assigned="0", revoking="1"),
            aim("02", "0"),
            "",
            ("stable", 6, "02", ""),
            id="revoked",
        ),
        pytest.param(
            current(UNREVOKED, assigned="0", revoking="1"),
            aim("01", "0"),
            "",
            ("stable", 6, "01", ""),
            id="given back",
        ),
        pytest.param(
            current(UNREVOKED, assigned="02", revoking="1"),
            aim("0", "02"),
            "",
            ("unrevoked", 5, "0", "2"),
            id="revoke more for the newest target",
        ),
        pytest.param(
            current(UNRELEASED, 6, assigned="0"),
            aim("01"),
            "1",
            ("unreleased", 6, "0", ""),
            id="not yet released",
        ),
        pytest.param(
            current(UNRELEASED, 6, assigned="0"), aim("01"), "", ("stable", 6, "01", ""), id="released"
        ),
        pytest.param(
            current(epoch=6, assigned="01"),
            aim("01", subscribed="", changed=True),
            "",
            ("unrevoked", 6, "", "01"),
            id="unsubscribed",
        ),
        pytest.param(
            current(epoch=6, assigned="01"),
            aim("01", "", subscribed="", changed=True),
            "",
            ("stable", 6, "", ""),
            id="unsubscribed and revoked",
        ),
        pytest.param(
            current(UNREVOKED, assigned="0", revoking="1"),
            aim("0", "1", subscribed="", changed=True),
            "",
            ("unrevoked", 5, "", "01"),
            id="unsubscribed while revoking",
        ),
        pytest.param(
            current(assigned="0"),
            aim("01", subscribed=""),
            "",
            ("unrevoked", 5, "", "0"),
            id="target is too old",
        ),
    ],
)
def test_member_moves_one_step(
    before: Current, to: Aim, others: str, after: tuple[str, int, str, str]
) -> None:
    held = owners(b=others)
    held.replace("a", Current(), before)

    assert after == text(reconciled("a", before, to, held))


def test_nothing_changes_without_a_newer_target() -> None:
    before = current(epoch=6, assigned="01")

    assert reconciled("a", before, aim("01", "01"), Owners()) is before


def test_granted_partitions_have_the_epoch_of_their_grant() -> None:
    after = reconciled("a", current(assigned="0"), aim("01"), Owners())

    assert (3, 6, None) == tuple(after.granted_epoch(T, partition) for partition in (0, 1, 2))
    assert 5 == after.previous_epoch


def test_partition_has_one_owner() -> None:
    held = owners(b="1")

    with pytest.raises(ValueError, match="belongs to b, not a"):
        held.replace("a", Current(), current(assigned="1"))


# --- All small cases -------------------------------------------------------------------------------------


def subsets(digits: str) -> list[str]:
    return ["".join(some) for size in range(len(digits) + 1) for some in itertools.combinations(digits, size)]


def test_all_small_cases_keep_the_rules() -> None:
    """Every state of a member of one topic with three partitions, with every target, report and other owner."""
    cases = 0
    for assigned, target in itertools.product(subsets("012"), repeat=2):
        free = "".join(sorted(set("012") - set(assigned)))
        for revoking in subsets(free):
            others = subsets("".join(sorted(set(free) - set(revoking))))
            for other, owned in itertools.product(others, [None, *subsets("012")]):
                for state in MemberState if not revoking else [UNREVOKED]:
                    if state is UNREVOKED and not revoking:
                        continue
                    check(current(state, 5, assigned, revoking), target, other, owned)
                    cases += 1
    assert cases > 5000


def check(before: Current, target: str, other: str, owned: str | None) -> None:
    held = owners(b=other)
    held.replace("a", Current(), before)
    after = reconciled("a", before, aim(target, owned), held)
    state, epoch, assigned, revoking = text(after)
    reported = set("012") if owned is None else set(owned)

    assert not set(assigned) & set(revoking)
    assert not (set(assigned) | set(revoking)) & set(other), "another member's partition"
    if state == "unrevoked":
        assert 5 == epoch
        assert set(revoking) & reported
    else:
        assert (6, "") == (epoch, revoking)
        assert set(assigned) <= set(target)
        assert (state == "stable") == (set(assigned) == set(target))
        assert set(target) - set(assigned) <= set(other), "withheld without a reason"
    # A partition leaves the member only if it reports to own it no more.
    gone = set(text(before)[2] + text(before)[3]) - set(assigned) - set(revoking)
    assert not gone & reported
    held.replace("a", before, after)
