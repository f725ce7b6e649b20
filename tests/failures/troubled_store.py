"""The answer of each API while Redis is slow, full or read-only: the table in docs/operations.md.

`python -m tests.failures.troubled_store` writes it. A request of every row of `conformance.authorization.rows` is sent
to a broker, at first while its Redis is well. The table has the error codes that come only while it is not, and the
longest time until an answer.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import attrs
import redis
from attrs import frozen

from conformance.authorization.__main__ import prepare
from conformance.authorization.rows import ROWS, Row
from conformance.peers import Peer
from conformance.talk import Ended, Talk
from korvet.handlers import APIS
from korvet.protocol.errors import ErrorCode
from korvet.security.authorizer import STANDARD
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
BEGIN, END = "<!-- answers of a troubled store -->", "<!-- end -->"
ANSWER_LIMIT_S = 40.0
PAUSE_MS = 10_000
SETTINGS = {
    "authorizer.class.name": STANDARD,
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
}
SASL = (17, 36)  # on a listener without SASL their answers do not depend on the store


@frozen
class Answered:
    """The names of the error codes in a response, and the seconds until it came."""

    codes: frozenset[str]
    seconds: float


Answers = Mapping[str, Answered]  # by API


@contextmanager
def slow(client: redis.Redis) -> Iterator[None]:
    """Redis executes no command for ten seconds."""
    client.execute_command("CLIENT", "PAUSE", PAUSE_MS, "ALL")
    yield


@contextmanager
def full(client: redis.Redis) -> Iterator[None]:
    """Redis refuses to write, since it uses more than maxmemory."""
    client.config_set("maxmemory", "1mb")
    yield


@contextmanager
def read_only(client: redis.Redis) -> Iterator[None]:
    """Redis has become a replica of a primary that it cannot reach."""
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    yield


TROUBLES: Mapping[str, Callable[[redis.Redis], object]] = {
    "slow for 10 s": slow,
    "full": full,
    "read-only": read_only,
}


def error_codes(value: object) -> Iterator[int]:
    """Yield all error codes in an answer."""
    if attrs.has(type(value)):
        for each in attrs.fields(type(value)):
            found = getattr(value, each.name)
            if each.name == "error_code":
                yield found
            else:
                yield from error_codes(found)
    elif isinstance(value, list):
        for item in value:
            yield from error_codes(item)


def answered(talk: Talk, row: Row) -> Answered:
    """Send the newest version of a row's request, and return what is answered."""
    began = time.monotonic()
    answer = talk.ask(row.build(talk, row.versions[-1]), row.versions[-1], limit_s=ANSWER_LIMIT_S)
    codes = (
        {answer.how}
        if isinstance(answer, Ended)
        else {ErrorCode(code).name for code in error_codes(answer) if code}
    )
    return Answered(frozenset(codes), time.monotonic() - began)


def ask_all(talks: Sequence[tuple[Row, Talk]]) -> Answers:
    """Send all requests concurrently, each over its own connection."""
    with ThreadPoolExecutor(len(talks)) as threads:
        found = list(threads.map(lambda each: answered(each[1], each[0]), talks))
    by_api: dict[str, list[Answered]] = defaultdict(list)
    for (row, _), each in zip(talks, found, strict=True):
        by_api[APIS[row.key].name].append(each)
    return {
        api: Answered(frozenset().union(*(each.codes for each in all_)), max(each.seconds for each in all_))
        for api, all_ in by_api.items()
    }


def answers_under(trouble: str) -> tuple[Answers, Answers]:
    """Return the answers while Redis is well, and those under the trouble."""
    rows = [row for row in ROWS if row.key not in SASL]
    server = start_server(VALKEY)
    try:
        with KorvetProcess(storage=server.url, settings=SETTINGS) as broker, server.client() as client:
            peer = Peer("korvet", broker.port)
            talks = [
                [(row, Talk(peer, f"{when}-{index}")) for index, row in enumerate(rows)] for when in "ab"
            ]
            for _, talk in (*talks[0], *talks[1]):
                talk.client()
                prepare(talk)
            usual = ask_all(talks[0])
            with TROUBLES[trouble](client):  # type: ignore[attr-defined]
                return usual, ask_all(talks[1])
    finally:
        server.remove()


def table() -> tuple[list[str], Mapping[str, float]]:
    """Return the lines of the table, and the longest time until an answer under each trouble."""
    found = {trouble: answers_under(trouble) for trouble in TROUBLES}
    longest = {
        trouble: max(each.seconds for each in troubled.values()) for trouble, (_, troubled) in found.items()
    }
    by_codes: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for api in next(iter(found.values()))[0]:
        cells = tuple(
            ", ".join(sorted(troubled[api].codes - usual[api].codes)) or "as usual"
            for usual, troubled in found.values()
        )
        by_codes[cells].append(api)
    lines = [f"| API | {' | '.join(TROUBLES)} |", f"|---|{'---|' * len(TROUBLES)}"]
    lines += [
        f"| {', '.join(sorted(apis))} | {' | '.join(cells)} |" for cells, apis in sorted(by_codes.items())
    ]
    return lines, longest


def documented() -> list[str]:
    """Return the lines of the table in the document."""
    found = re.search(f"{re.escape(BEGIN)}\n(.*?){re.escape(END)}", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    return found[1].strip().splitlines()


def main() -> None:
    lines, _ = table()
    text = DOCUMENT.read_text()
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOCUMENT.write_text(text[:start] + "\n" + "\n".join(lines) + "\n" + text[end:])


if __name__ == "__main__":
    main()
