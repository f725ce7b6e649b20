"""The answer of each API while Redis is slow, full or read-only.

A request of every row of `conformance.authorization.rows` is sent to a broker, at first while its Redis is well, and
then in trouble. `python -m tests.failures.troubled_store` writes the table in docs/redis-failures.md: the error codes
that come only in trouble. Those of a slow Redis depend on the moment, so they are not in the table.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import attrs
import redis
from attrs import frozen

from conformance.authorization.__main__ import prepare
from conformance.authorization.rows import ROWS, Row
from conformance.peers import Peer
from conformance.talk import Ended, Talk
from korvet.broker.producer_ids import BLOCK_LIFE_MS
from korvet.handlers import APIS
from korvet.protocol.errors import ErrorCode
from korvet.security.authorizer import STANDARD
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

DOCUMENT = Path(__file__).parents[2] / "docs" / "redis-failures.md"
BEGIN, END = "<!-- answers of a troubled store -->", "<!-- end -->"
ANSWER_LIMIT_S = 40.0
PAUSE_MS = 10_000
SETTINGS = {
    "authorizer.class.name": STANDARD,
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": "0",
    # A pause of ten seconds would end the default session of the broker, and its groups.
    "broker.session.timeout.ms": "60000",
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


Trouble = Callable[[redis.Redis], AbstractContextManager[None]]
TABLE: Mapping[str, Trouble] = {"full": full, "read-only": read_only}


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
    request = row.build(talk, row.versions[-1])
    if hasattr(request, "validate_only"):
        request.validate_only = False
    began = time.monotonic()
    answer = talk.ask(request, row.versions[-1], limit_s=ANSWER_LIMIT_S)
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


def answers_under(trouble: Trouble) -> tuple[Answers, Answers]:
    """Return the answers while Redis is well, and those under the trouble."""
    rows = [row for row in ROWS if row.key not in SASL]
    with ExitStack() as stack:
        server = start_server(VALKEY)
        stack.callback(server.remove)
        broker = stack.enter_context(KorvetProcess(storage=server.url, settings=SETTINGS))
        client = stack.enter_context(server.client())
        peer = Peer("korvet", broker.port)
        well, troubled = (
            [(row, stack.enter_context(Talk(peer, f"{when}-{index}"))) for index, row in enumerate(rows)]
            for when in ("well", "troubled")
        )
        for _, talk in (*well, *troubled):
            prepare(talk)
        usual = ask_all(well)
        # The broker hands out producer ids of a block without asking Redis, until the block is too old.
        time.sleep(BLOCK_LIFE_MS / 1000)
        with trouble(client):
            return usual, ask_all(troubled)


def added_codes(usual: Answers, troubled: Answers) -> Mapping[str, list[str]]:
    """Return the codes that come only in trouble, by API."""
    return {api: sorted(each.codes - usual[api].codes) for api, each in troubled.items()}


def longest_s(troubled: Answers) -> float:
    """Return the longest time until an answer."""
    return max(each.seconds for each in troubled.values())


def table() -> tuple[list[str], float]:
    """Return the lines of the table, and the longest time until an answer."""
    found = [answers_under(trouble) for trouble in TABLE.values()]
    added = [added_codes(*each) for each in found]
    by_cells: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for api in added[0]:
        by_cells[tuple(", ".join(each[api]) or "as usual" for each in added)].append(api)
    lines = [f"| API | {' | '.join(TABLE)} |", f"|---|{'---|' * len(TABLE)}"]
    lines += [
        f"| {', '.join(sorted(apis))} | {' | '.join(cells)} |" for cells, apis in sorted(by_cells.items())
    ]
    return lines, max(longest_s(troubled) for _, troubled in found)


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
