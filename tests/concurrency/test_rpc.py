"""RPC between processes, here between tasks, over real sockets."""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from attrs import define, field

from korvet.concurrency import rpc
from korvet.concurrency.rpc import Link, LinkBroken, Parked, Question, answer_links, link_to

LIMIT_S = 10.0


def parked(seconds: float) -> AbstractContextManager[Any]:
    return trio.move_on_after(seconds)


@pytest.fixture
def path() -> Iterator[Path]:
    # Not pytest's tmp_path: a Unix socket's path may have 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="kl-"))
    yield folder / "1.sock"
    shutil.rmtree(folder)


@define
class Other:
    """The RPC server: `wait` waits until its wait is ended, `fail` raises, other requests are echoed."""

    began: trio.Event = field(factory=trio.Event)
    done: list[str] = field(factory=list)

    async def answer(self, question: Question, parked: Parked) -> object:
        if question.verb == "wait":
            self.began.set()
            with parked(math.inf):
                await trio.sleep_forever()
        elif question.verb == "fail":
            raise RuntimeError("a fault")
        self.done.append(question.verb)
        return question


Play = Callable[[Link, Other], Awaitable[None]]


async def play(path: Path, scene: Play) -> None:
    other = Other()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(answer_links, path, other.answer, parked)
            await scene(link_to(path, nursery), other)
            nursery.cancel_scope.cancel()


async def test_responses_are_matched_to_requests_in_any_order(path: Path) -> None:
    async def scene(link: Link, other: Other) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.ask, Question("wait"))
            await other.began.wait()
            sizes = [0, 1, 100_000, 3_000_000]
            questions = [Question("back", (b"x" * size, size)) for size in sizes]
            answers = [await link.ask(question) for question in questions]
            nursery.cancel_scope.cancel()

        assert questions == answers

    await play(path, scene)


async def test_wait_ended_at_the_caller_is_ended_and_answered_by_the_peer(path: Path) -> None:
    async def scene(link: Link, other: Other) -> None:
        ending = trio.CancelScope()
        answers: list[object] = []

        def bound(_: float) -> trio.CancelScope:
            return ending

        async def ask() -> None:
            answers.append(await link.ask(Question("wait"), bound))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await other.began.wait()
            ending.cancel()

        assert [Question("wait")] == answers
        assert ["wait"] == other.done

    await play(path, scene)


async def test_cancelled_request_ends_the_wait_of_the_peer(path: Path) -> None:
    async def scene(link: Link, other: Other) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.ask, Question("wait"))
            await other.began.wait()
            nursery.cancel_scope.cancel()
        while "wait" not in other.done:
            await link.ask(Question("back"))

    await play(path, scene)


async def test_wait_ended_before_it_starts_is_answered(path: Path) -> None:
    async def scene(link: Link, other: Other) -> None:
        ended = trio.CancelScope()
        ended.cancel()

        assert Question("wait") == await link.ask(Question("wait"), lambda _: ended)

    await play(path, scene)


async def test_request_fails_immediately_when_no_process_listens(path: Path) -> None:
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            link = link_to(path, nursery)
            for _ in range(2):
                with pytest.raises(LinkBroken, match=r"no process is listening at 1\.sock"):
                    await link.ask(Question("back"))


async def test_requests_fail_when_the_peer_ends_and_its_successor_is_used(
    path: Path,
) -> None:
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            link = link_to(path, nursery)
            other = Other()
            broken: list[str] = []

            async def ask() -> None:
                try:
                    await link.ask(Question("wait"), parked)
                except LinkBroken as error:
                    broken.append(str(error))

            async with trio.open_nursery() as asking, trio.open_nursery() as answering:
                await answering.start(answer_links, path, other.answer, parked)
                asking.start_soon(ask)
                await other.began.wait()
                answering.cancel_scope.cancel()
            assert ["the link to the process at 1.sock broke before it answered"] == broken

            await nursery.start(answer_links, path, other.answer, parked)
            assert Question("back") == await link.ask(Question("back"))
            nursery.cancel_scope.cancel()


async def test_unresponsive_process_is_disconnected(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rpc, "PING_EVERY_S", 0.02)
    monkeypatch.setattr(rpc, "SILENCE_LIMIT_S", 0.1)
    listening = trio.socket.socket(trio.socket.AF_UNIX)
    with listening, trio.fail_after(LIMIT_S):
        await listening.bind(str(path))
        listening.listen()
        async with trio.open_nursery() as nursery:
            with pytest.raises(LinkBroken, match="broke before it answered"):
                await link_to(path, nursery).ask(Question("back"), parked)

    assert "does not respond" in caplog.text


async def test_long_wait_survives_the_silence_limit_while_the_process_is_alive(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "PING_EVERY_S", 0.02)
    monkeypatch.setattr(rpc, "SILENCE_LIMIT_S", 0.3)

    async def scene(link: Link, other: Other) -> None:
        def bound(_: float) -> trio.CancelScope:
            return trio.move_on_after(0.7)

        assert Question("wait") == await link.ask(Question("wait"), bound)

    await play(path, scene)


async def test_error_in_a_response_is_logged_and_breaks_only_that_connection(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(link: Link, other: Other) -> None:
        with pytest.raises(LinkBroken, match="broke before it answered"):
            await link.ask(Question("fail"))
        assert "RuntimeError: a fault" in caplog.text

        assert Question("back") == await link.ask(Question("back"))

    with caplog.at_level(logging.ERROR):
        await play(path, scene)
