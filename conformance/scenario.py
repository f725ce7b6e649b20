"""Scenarios, which run the same function against every broker, in every version of their API."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import SequenceMatcher

from attrs import frozen

from conformance.comparison import Found, compare
from conformance.peers import Peer
from conformance.talk import Ended, Step, Talk, versions

Play = Callable[[Talk, int], None]


@frozen
class Scenario:
    """A scenario. `versions` are those of its API, or (0,) for a session in the newest version of each API."""

    name: str
    play: Play
    versions: tuple[int, ...]
    request: type[object] | None = None  # of its API


@frozen
class Outcome:
    """The result of a scenario on all brokers."""

    scenario: Scenario
    answers: int  # compared with Kafka's
    found: Sequence[Found]
    broken: Sequence[str]  # why Kafka, or the scenario, did not complete


#: All scenarios by name, declared by their modules.
SCENARIOS: dict[str, Scenario] = {}


def scenario(
    request: type[object] | None = None, first: int = 0, last: int = 32767
) -> Callable[[Play], Play]:
    """Declare a scenario: for every version of the request's API (within the given ones), or a session played once.

    Its name consists of the names of module and function: `produce: an unknown topic`.
    """

    def declare(play: Play) -> Play:
        module = play.__module__.rpartition(".")[2].replace("_", " ")
        name = f"{module}: {play.__name__.replace('_', ' ')}"
        if name in SCENARIOS:
            raise ValueError(f"there are two scenarios {name!r}")
        spoken = (0,) if request is None else tuple(versions(request, first, last))
        SCENARIOS[name] = Scenario(name, play, spoken, request)
        return play

    return declare


def chosen(words: Iterable[str]) -> list[Scenario]:
    """Return the scenarios whose names contain one of these words; without words, all of them."""
    wanted = list(words)
    return [each for each in SCENARIOS.values() if not wanted or any(word in each.name for word in wanted)]


def near(word: str, count: int = 5) -> list[str]:
    """Return the names of the scenarios that resemble a word, the most similar first."""

    def likeness(scenario: Scenario) -> float:
        parts = [scenario.name, *re.findall(r"\w+", scenario.name)]
        return max(SequenceMatcher(None, word.lower(), part.lower()).ratio() for part in parts)

    return [each.name for each in sorted(SCENARIOS.values(), key=likeness, reverse=True)[:count]]


def run(scenario: Scenario, number: int, peers: Sequence[Peer]) -> Outcome:
    """Play a scenario on all brokers concurrently. `number` makes its names unique."""
    with ThreadPoolExecutor(len(peers)) as pool:
        talks = list(pool.map(lambda peer: _play(scenario, number, peer), peers))
    kafka, *ours = talks
    found: list[Found] = []
    broken: list[str] = []
    answers = 0
    for version, theirs in kafka.items():
        last = theirs.steps[-1].answer if theirs.steps else Ended("nothing was asked")
        if theirs.steps[-1:] and theirs.steps[-1].label == STOPPED:
            broken.append(f"version {version}: {last.how}")
        for talk in ours:
            found += compare(scenario.name, version, theirs, talk[version])
            answers += len(theirs.steps)
    return Outcome(scenario, answers, found, broken)


STOPPED = "(the scenario itself)"


def _play(scenario: Scenario, number: int, peer: Peer) -> Mapping[int, Talk]:
    talks = {}
    for version in scenario.versions:
        with Talk(peer, f"s{number:04d}v{version:02d}") as talk:
            try:
                scenario.play(talk, version)
            except Exception as error:  # noqa: BLE001  reported with the comparison
                what = re.sub(r"s\d{4}v\d\d-", "", f"{type(error).__name__}: {error}")[:300]
                talk.steps.append(Step(STOPPED, "-", 0, Ended(f"it stopped: {what}")))
        talks[version] = talk
    return talks
