from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cli.conftest import Korvet
from tests.processes import KorvetProcess


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


def test_embedded_storage_is_examined_beside_a_running_broker(korvet: Korvet) -> None:
    with TemporaryDirectory(prefix="korvet-") as parent:
        folder = Path(parent, "data")
        options = ("--listeners", "127.0.0.1:0", "--storage", f"embedded:{folder}")
        before = korvet("doctor", *options)
        with KorvetProcess(storage=f"embedded:{folder}"):
            beside = korvet("doctor", *options)
        after = korvet("doctor", *options)
        (data,) = (folder / "appendonlydir").glob("*.incr.aof")
        with data.open("ab") as file:
            file.write(bytes(10))
        damaged = korvet("doctor", *options)
        shutil.rmtree(folder / "appendonlydir")
        lost = korvet("doctor", *options)

    assert [0, 0, 0, 2, 2] == [each.status for each in (before, beside, after, damaged, lost)]
    assert "does not exist; korvet serve creates it" in before.out
    assert "is served by valkey (process " in beside.out
    assert "none if only the broker or its server ends" in beside.out
    assert "rights" in beside.out
    assert "bytes of intact data, and no server runs" in after.out
    assert f"korvet repair {folder}" in damaged.out
    assert "appendonly.aof.manifest is missing" in lost.out


def test_storage_that_does_not_exist_is_an_error(korvet: Korvet) -> None:
    for url in ("mysql:foo", "redis://[::1/0", "memory://[::1", "embedded:"):
        done = korvet("doctor", "--listeners", "127.0.0.1:0", "--storage", url)

        assert (2, "") == (done.status, done.err)
        assert "error " in done.out
