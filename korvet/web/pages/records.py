"""The records of a topic: a list from a position, search, one record, and downloads."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import field, frozen
from starlette.requests import Request
from starlette.responses import Response

from korvet.client import EARLIEST, LATEST, Client, ConsumedRecord, Topic, TopicPartition
from korvet.web.inputs import MAX_NUMBER, BadInput, choice, moment, number, shortened
from korvet.web.pages.topics import find_topic
from korvet.web.reading import Budget, Found, Match, backward, everything, forward
from korvet.web.sessions import Visitor
from korvet.web.site import NotHere, Site
from korvet.web.values import FORMATS, Shown, shown

FROM = ("newest", "start", "time", "offset")
RECORDS_A_PAGE = 50
MOST_ON_A_PAGE = 500
MOST_IN_A_DOWNLOAD = 10_000
LONGEST_SEARCH = 500
MAX_POSITIONS = 1000
# Bytes of record contents in a download, which is built in memory.
DOWNLOAD_BYTES = 32 * 1024 * 1024


@frozen
class Question:
    """The choices of a visitor: the part of the topic, the search, and the formats."""

    topic: Topic
    start: str
    partition: int | None
    offset: int
    time_ms: int
    search: str
    limit: int
    key_format: str
    value_format: str
    #: Offsets at which to continue, from a link of a previous page; None on the first one.
    at: Mapping[TopicPartition, int] | None = None
    fields: Mapping[str, str] = field(factory=dict)

    @classmethod
    def of(cls, topic: Topic, query: Mapping[str, str], *, most: int = MOST_ON_A_PAGE) -> Question:
        """Parse the query of a page. Raises BadInput."""
        start = choice(query, "from", FROM)
        partition = number(query, "partition", None)
        if partition is not None and partition >= len(topic.partitions):
            raise BadInput(
                f"partition is {partition}; accepted: 0 to {len(topic.partitions) - 1}.", "partition"
            )
        search = query.get("q", "")
        if len(search) > LONGEST_SEARCH:
            raise BadInput(f"q is too long; accepted: up to {LONGEST_SEARCH} characters.", "q")
        return cls(
            topic,
            start,
            partition,
            number(query, "offset", 0) if start == "offset" else 0,
            moment(query, "time") if start == "time" else 0,
            search,
            number(query, "limit", RECORDS_A_PAGE, least=1, most=most),
            choice(query, "key", FORMATS),
            choice(query, "value", FORMATS),
            _parsed_positions(topic, query["at"]) if query.get("at") else None,
            {name: query.get(name, "") for name in ("partition", "offset", "time")},
        )

    @property
    def tps(self) -> list[TopicPartition]:
        return [
            TopicPartition(self.topic.name, each.partition)
            for each in self.topic.partitions
            if each.leader_id >= 0 and self.partition in (None, each.partition)
        ]

    @property
    def match(self) -> Match:
        return partial(contains, self.search.encode()) if self.search else everything

    async def answer(self, client: Client, budget: Budget) -> Found:
        """Return the records, the newest first if the question starts there."""
        tps = self.tps
        starts = {
            tp: at.offset for tp, at in (await client.list_offsets(dict.fromkeys(tps, EARLIEST))).items()
        }
        ends = {tp: at.offset for tp, at in (await client.list_offsets(dict.fromkeys(tps, LATEST))).items()}
        at = None if self.at is None else {tp: offset for tp, offset in self.at.items() if tp in ends}
        if self.start == "newest":
            before = ends if at is None else {tp: min(offset, ends[tp]) for tp, offset in at.items()}
            return await backward(client, starts, before, self.limit, self.match, budget)
        if at is None:
            at = await self._first(client, starts, ends)
        begin = {tp: min(max(offset, starts[tp]), ends[tp]) for tp, offset in at.items()}
        return await forward(client, begin, ends, self.limit, self.match, budget)

    async def _first(
        self, client: Client, starts: dict[TopicPartition, int], ends: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        match self.start:
            case "offset":
                return dict.fromkeys(starts, self.offset)
            case "time":
                found = await client.list_offsets(dict.fromkeys(starts, self.time_ms))
                return {tp: at.offset if at.offset >= 0 else ends[tp] for tp, at in found.items()}
            case _:
                return starts


def contains(text: bytes, record: ConsumedRecord) -> bool:
    """Return True if the key, the value or a header contains the text, in UTF-8."""
    return (
        text in (record.value or b"")
        or text in (record.key or b"")
        or any(
            text in name.encode("utf-8", "replace") or text in (value or b"")
            for name, value in record.headers
        )
    )


def _parsed_positions(topic: Topic, text: str) -> dict[TopicPartition, int]:
    """Parse PARTITION:OFFSET,… of a link. Raises BadInput."""
    positions = {}
    for each in text.split(",")[: MAX_POSITIONS + 1]:
        partition, _, offset = each.partition(":")
        if not all(part.isascii() and part.isdecimal() and len(part) < 20 for part in (partition, offset)):
            raise BadInput(f"at is {shortened(text)}; accepted: PARTITION:OFFSET, separated by commas.")
        if int(partition) >= len(topic.partitions) or int(offset) > MAX_NUMBER:
            raise BadInput(f"at is {shortened(text)}; there is no such position.")
        positions[TopicPartition(topic.name, int(partition))] = int(offset)
    return positions


def written_positions(positions: Mapping[TopicPartition, int]) -> str:
    return ",".join(f"{tp.partition}:{offset}" for tp, offset in sorted(positions.items())[:MAX_POSITIONS])


@frozen
class Row:
    """A record as the pages show it."""

    record: ConsumedRecord
    key: Shown
    value: Shown
    headers: Sequence[tuple[str, Shown]]


async def records(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return a page of records."""
    topic = await find_topic(request, visitor.client)
    query = request.query_params
    try:
        question = Question.of(topic, query)
    except BadInput as error:
        faults = {error.field: str(error)}
        kept = {"topic": topic, "question": None, "query": query, "formats": FORMATS, "faults": faults}
        return site.render(request, "records.html", kept, status=400)
    budget = Budget()
    found = await question.answer(visitor.client, budget)
    values = {
        "topic": topic,
        "question": question,
        "query": query,
        "faults": {},
        "formats": FORMATS,
        "rows": [await row_of(site, record, question) for record in found.records],
        "found": found,
        "budget": budget,
        "next_at": written_positions(found.positions),
    }
    return site.render(request, "records.html", values)


async def row_of(site: Site, record: ConsumedRecord, question: Question) -> Row:
    key = await site.shown(record.key, question.key_format)
    value = await site.shown(record.value, question.value_format)
    return Row(record, key, value, [(name, shown(content)) for name, content in record.headers])


async def record(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the page of one record, or its key or value as a file."""
    topic = await find_topic(request, visitor.client)
    question = Question.of(topic, request.query_params)
    found = await _record_at(request, topic, visitor.client)
    part = request.query_params.get("download", "")
    if part:
        return _file(found, choice(request.query_params, "download", ("value", "key")))
    row = await row_of(site, found, question)
    values = {"topic": topic, "row": row, "formats": FORMATS, "question": question}
    return site.render(request, "record.html", values)


async def _record_at(request: Request, topic: Topic, client: Client) -> ConsumedRecord:
    """Return the record that the path names. Raises NotHere."""
    partition, offset = request.path_params["partition"], request.path_params["offset"]
    if partition >= len(topic.partitions):
        raise NotHere(
            f"There is no partition {str(partition)[:20]}; {topic.name} has the partitions 0 to "
            f"{len(topic.partitions) - 1}."
        )
    missing = NotHere("There is no record at this offset: it was removed, or not written yet.")
    if offset > MAX_NUMBER - 1:
        raise missing
    tp = TopicPartition(topic.name, partition)
    start = (await client.list_offsets({tp: EARLIEST}))[tp].offset
    end = (await client.list_offsets({tp: LATEST}))[tp].offset
    if not start <= offset < end:
        raise missing
    found = await forward(client, {tp: offset}, {tp: offset + 1}, 1, everything, Budget(records=1))
    if not found.records:
        raise missing
    return found.records[0]


def _file(record: ConsumedRecord, part: str) -> Response:
    content = record.value if part == "value" else record.key
    if content is None:
        raise NotHere(f"The {part} of this record is null, so there is nothing to download.")
    name = f"{record.topic}-{record.partition}-{record.offset}-{part}.bin"
    return attachment(content, name, "application/octet-stream")


async def download(_site: Site, request: Request, visitor: Visitor) -> Response:
    """Return records as JSON lines, in the order of the page."""
    topic = await find_topic(request, visitor.client)
    question = Question.of(topic, request.query_params, most=MOST_IN_A_DOWNLOAD)
    found = await question.answer(visitor.client, Budget(bytes=DOWNLOAD_BYTES))
    content = "".join(lines_of(found.records)).encode()
    return attachment(content, f"{topic.name}.jsonl", "application/x-ndjson")


def attachment(content: bytes, name: str, kind: str) -> Response:
    """Return a file that the browser saves and does not show."""
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=kind, headers=headers)


def lines_of(records: Sequence[ConsumedRecord]) -> Iterator[str]:
    """Yield a line of JSON for each record. Bytes that are not UTF-8 are in base64, under another name."""
    for record in records:
        line: dict[str, Any] = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            **_encoded("key", record.key),
            **_encoded("value", record.value),
            "headers": [{"name": name, **_encoded("value", value)} for name, value in record.headers],
        }
        yield json.dumps(line) + "\n"


def _encoded(name: str, content: bytes | None) -> dict[str, str | None]:
    if content is None:
        return {name: None}
    try:
        return {name: content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content).decode()}
