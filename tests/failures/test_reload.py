"""SIGHUP to a broker without a controlling terminal: it reloads, and connections stay open."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from korvet.protocol.messages.metadata import MetadataRequest
from tests.processes import KorvetProcess
from tests.support.wire import Wire, first_answer


def test_reload_uses_new_passwords_and_names_settings_that_need_a_restart(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("alice: sesame\n")
    settings = tmp_path / "korvet.toml"
    settings.write_text("num.partitions = 3\n")
    with KorvetProcess(
        runner=["setsid"],
        settings={"sasl.plain.users.file": str(users)},
        options=["--config", str(settings)],
    ) as broker:
        users.write_text("alice: another\n")
        settings.write_text("num.partitions = 4\n")
        with Wire(broker.port) as wire:
            wire.call(MetadataRequest(topics=[]))
            os.kill(broker.pid, signal.SIGHUP)

            broker.wait_for_log("settings that changed apply after a restart: num.partitions$")
            broker.wait_for_log(f"PLAIN uses the new passwords in {users}")
            broker.wait_for_log("certificates, passwords and keys of tokens are up to date")
            wire.call(MetadataRequest(topics=[]))  # on the same connection
        assert broker.stop() == 0


def test_reload_reports_settings_that_are_invalid_now(tmp_path: Path) -> None:
    settings = tmp_path / "korvet.toml"
    settings.write_text("num.partitions = 3\n")
    with KorvetProcess(runner=["setsid"], options=["--config", str(settings)]) as broker:
        settings.write_text("num.partitions = 'many'\n")
        os.kill(broker.pid, signal.SIGHUP)

        broker.wait_for_log(r"\$\.num\.partitions: 'many' is not a whole number .*; a restart would fail")
        first_answer(broker.port)


def test_reload_reaches_every_process(embedded_folder: Path) -> None:
    with KorvetProcess(
        storage=f"embedded:{embedded_folder}", runner=["setsid"], options=["--processes", "2"]
    ) as broker:
        os.kill(broker.pid, signal.SIGHUP)

        for worker in (1, 2):
            broker.wait_for_log(rf"\[{worker}\] certificates, passwords and keys of tokens are up to date")
