from __future__ import annotations

from pathlib import Path

import pytest

from korvet.pipeline.session import JavaNotFound, find_java


def fake_java(folder: Path, text: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize("version", ["17.0.15", "25", "21-ea"])
def test_java_is_found_through_java_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    java = fake_java(tmp_path, f'openjdk version "{version}" 2026-01-01')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert java == find_java()


@pytest.mark.parametrize(
    "text, said",
    [
        ('java version "1.8.0_392"', "is Java 8; Spark needs Java 17 or newer"),
        ('openjdk version "11.0.2"', "is Java 11; Spark needs Java 17 or newer"),
        ("", "does not start; Spark needs Java 17 or newer"),
    ],
)
def test_unsuitable_java_is_reported_with_install_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    fake_java(tmp_path, text)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound) as raised:
        find_java()

    assert said in str(raised.value)
    assert "apt install default-jre-headless" in str(raised.value)


def test_missing_java_is_reported_with_the_searched_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(JavaNotFound, match="no java is on the search path; Spark needs Java 17"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFound, match=f"JAVA_HOME={tmp_path} holds no bin/java"):
        find_java()
