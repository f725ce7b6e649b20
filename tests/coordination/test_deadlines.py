from __future__ import annotations

from random import Random

from korvet.coordination.deadlines import NEVER, SPARE, Deadlines


def test_keys_are_popped_in_order_of_their_deadlines() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for key, end_ms in {"b": 20, "a": 10, "c": 30}.items():
        deadlines.set(key, end_ms)

    assert 10 == deadlines.next_ms
    assert ["a", "b", None] == [deadlines.pop(25) for _ in range(3)]
    assert 30 == deadlines.next_ms


def test_deadline_can_be_moved_and_cleared() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("later", 10)
    deadlines.set("later", 40)
    deadlines.set("earlier", 50)
    deadlines.set("earlier", 5)
    deadlines.set("cleared", 1)
    deadlines.clear("cleared")

    assert ["earlier", None] == [deadlines.pop(30) for _ in range(2)]
    assert ["later", None] == [deadlines.pop(60) for _ in range(2)]
    assert NEVER == deadlines.next_ms


def test_deadlines_match_a_model() -> None:
    random, model = Random(12), dict[int, float]()
    deadlines: Deadlines[int] = Deadlines()
    for now_ms in range(3000):
        key = random.randrange(30)
        if random.random() < 0.7:
            model[key] = now_ms + random.randrange(1, 200)
            deadlines.set(key, model[key])
        else:
            model.pop(key, None)
            deadlines.clear(key)
        due = []
        while (popped := deadlines.pop(now_ms)) is not None:
            due.append(model.pop(popped))
        assert due == sorted(due)
        assert all(end_ms > now_ms for end_ms in model.values())
        assert deadlines.next_ms <= min(model.values(), default=NEVER)


def test_cleared_deadlines_do_not_accumulate() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for key in range(10_000):
        deadlines.set(key, 1_000_000)
        deadlines.clear(key)

    assert len(deadlines._heap) <= SPARE + 1
