from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Korvet

COMMAND = b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n"
MULTI, EXEC = b"*1\r\n$5\r\nMULTI\r\n", b"*1\r\n$4\r\nEXEC\r\n"


def prepare(folder: Path, content: bytes) -> Path:
    directory = folder / "appendonlydir"
    directory.mkdir()
    (directory / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    path = directory / "appendonly.aof.1.incr.aof"
    path.write_bytes(content)
    return path


def test_intact_file_is_not_changed(korvet: Korvet, tmp_path: Path) -> None:
    path = prepare(tmp_path, b"#TS:1700000000\r\n" + MULTI + COMMAND + EXEC)
    done = korvet("repair", str(tmp_path), "--yes")

    assert (0, "") == (done.status, done.err)
    assert done.out.endswith("There is no damage.\n")
    assert 1 == len(list(tmp_path.rglob("*.incr.aof")))
    assert path.read_bytes().endswith(EXEC)


def test_damage_is_shown_and_cut_only_with_yes(korvet: Korvet, tmp_path: Path) -> None:
    damaged = COMMAND + MULTI + COMMAND + b"*3\r\n$3\r\nSET\r\n$9\r\na\r\n"
    path = prepare(tmp_path, damaged)
    shown = korvet("repair", f"embedded:{tmp_path}")
    unchanged = path.read_bytes()
    done = korvet("repair", str(tmp_path), "-y")
    again = korvet("repair", str(tmp_path))

    assert 1 == shown.status
    assert f"{len(damaged)} bytes, damaged from byte {len(COMMAND)} on" in shown.out
    assert f"--yes cuts the last {len(damaged) - len(COMMAND)} bytes" in shown.err
    assert damaged == unchanged
    assert (0, COMMAND) == (done.status, path.read_bytes())
    (copy,) = tmp_path.glob("before-repair-*/*")
    assert (damaged, str(copy)) == (copy.read_bytes(), done.out.split()[-1])
    assert 0 == again.status


def test_what_cannot_be_repaired_is_refused(korvet: Korvet, tmp_path: Path) -> None:
    missing = korvet("repair", str(tmp_path / "none"))
    empty = korvet("repair", str(tmp_path))
    prepare(tmp_path, COMMAND).unlink()
    file_missing = korvet("repair", str(tmp_path))

    assert [2, 2, 2] == [each.status for each in (missing, empty, file_missing)]
    assert "it does not exist" in missing.err
    assert "manifest is missing" in empty.err
    assert "incr.aof is missing; only a backup can replace it" in file_missing.err
