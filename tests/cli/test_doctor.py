from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Korvet


def test_verdicts_are_printed_and_the_worst_is_the_exit_status(korvet: Korvet) -> None:
    done = korvet("doctor", "--listeners", "127.0.0.1:0")

    assert (1, "") == (done.status, done.err)
    verdicts = [line.split()[0] for line in done.out.splitlines()]
    assert {"ok", "warning", "->"} == set(verdicts)
    assert "memory:// keeps records in the broker's memory" in done.out


def test_findings_are_printed_as_json(korvet: Korvet, tmp_path: Path) -> None:
    embedded = ("--storage", f"embedded:{tmp_path}")
    done = korvet("doctor", "--json", "--listeners", "127.0.0.1:0", *embedded, "--set", "lake.url=s3://x/y?")

    findings = json.loads(done.out)
    assert 2 == done.status
    assert {"verdict", "check", "reason", "remedy"} == set(findings[0])
    assert ["error"] == [each["verdict"] for each in findings if each["check"] == "lake"]


def test_lake_that_refuses_conflicting_commits_is_fine(korvet: Korvet, tmp_path: Path) -> None:
    embedded = ("--storage", f"embedded:{tmp_path}")
    done = korvet("doctor", "--listeners", "127.0.0.1:0", *embedded, "--set", f"lake.url={tmp_path}/lake")

    assert (0, "") == (done.status, done.err)
    assert "accepts one of several simultaneous commits" in done.out


def test_invalid_settings_are_reported_as_by_serve(korvet: Korvet) -> None:
    done = korvet("doctor", "--set", "num.partitions=none")

    assert 2 == done.status
    assert "$.num.partitions: 'none' is not a whole number" in done.err
