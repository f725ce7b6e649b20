"""`python -m conformance [WORD …]`: play the scenarios (those whose name contains one of the words) and judge.

Prints a line per scenario, every undeclared difference, and a summary. The exit status is 0 if all differences are
declared, all declared ones were found, and docs/conformance.md is up to date.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import conformance.scenarios  # noqa: F401  declares them
from conformance.apache_kafka import KafkaUnavailable
from conformance.comparison import Difference, Found, together
from conformance.differences import Reason, declared, text_of, undeclared, updated, vanished, write
from conformance.page import PAGE, page
from conformance.peers import OURS, Peer, peers
from conformance.readiness import warm_up
from conformance.scenario import SCENARIOS, Outcome, chosen, near, run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    options = _options(arguments)
    if options.page:
        PAGE.write_text(page(declared(), SCENARIOS.values()), encoding="utf-8")
        return 0
    if unmatched := [word for word in options.words if not chosen([word])]:
        for word in unmatched:
            print(
                f"no scenario has {word!r} in its name; near names: {', '.join(near(word))}", file=sys.stderr
            )
        return 2
    try:
        with peers() as running:
            warm_up(running)
            outcomes = play(options.words, running)
    except KafkaUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    if options.declare:
        found, played = together(_found(outcomes)), [outcome.scenario.name for outcome in outcomes]
        write(updated(found, declared(), played))
    return judge(outcomes, declared(), PAGE.read_text(encoding="utf-8"))


def play(words: Sequence[str], running: Sequence[Peer]) -> list[Outcome]:
    """Play the chosen scenarios one after another, and print a line for each."""
    outcomes = []
    known = {row for reason in declared() for row in reason.differences}
    for number, scenario in enumerate(SCENARIOS.values()):
        if scenario not in chosen(words):
            continue
        began = time.monotonic()
        outcome = run(scenario, number, running)
        rows = together(outcome.found)
        new = sum(row not in known for row in rows)
        state = "BROKEN" if outcome.broken else f"{new} UNDECLARED" if new else "ok"
        differences = f", {len(rows)} differences" if rows else ""
        print(
            f"{scenario.name}: {state} ({outcome.answers} answers{differences}, {time.monotonic() - began:.1f} s)",
            flush=True,
        )
        outcomes.append(outcome)
    return outcomes


def judge(outcomes: Sequence[Outcome], reasons: Sequence[Reason], written: str) -> int:
    """Print the faults and a summary. Return 1 if there are faults. `written` is the current text of the page."""
    found = together(_found(outcomes))
    played = [outcome.scenario.name for outcome in outcomes]
    faults = [
        *(f"BROKEN {outcome.scenario.name}: {text}" for outcome in outcomes for text in outcome.broken),
        *(f"UNDECLARED {described(row)}" for row in undeclared(found, reasons)),
        *(f"NO LONGER FOUND {described(row)}" for row in vanished(found, reasons, played)),
        *(
            f"WITHOUT A REASON {described(row)}"
            for each in reasons
            if not each.why
            for row in each.differences
        ),
    ]
    if written != page(reasons, SCENARIOS.values()):
        faults.append(f"{PAGE.name} is out of date: python -m conformance --page")
    for fault in faults:
        print(fault)
    answers = sum(outcome.answers for outcome in outcomes)
    print(
        f"{len(outcomes)} scenarios, {answers} answers of {len(OURS)} brokers compared with Apache Kafka's: "
        f"{len(found)} differences, {len(faults)} faults"
    )
    return 1 if faults else 0


def described(row: Difference) -> str:
    """Describe a difference in a few lines."""
    brokers = "" if row.brokers == OURS else f" ({'; '.join(row.brokers)})"
    return (
        f"{row.scenario}, {row.step}: {row.api} {text_of(row.versions)} {', '.join(row.fields)}\n"
        f"    Apache Kafka: {row.kafka}\n    korvet{brokers}: {row.korvet}"
    )


def _found(outcomes: Sequence[Outcome]) -> list[Found]:
    return [found for outcome in outcomes for found in outcome.found]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="play only scenarios with WORD in their name"
    )
    parser.add_argument("--page", action="store_true", help="only write docs/conformance.md")
    parser.add_argument(
        "--declare", action="store_true", help="bring differences.toml in step with what is found"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
