"""Producers that send the next request as soon as they have a response, whatever its throttle time.

Arguments: the port of a broker on this machine, the number of producers, their client id's prefix, the seconds before
the measurement, the seconds of the measurement. The program prints for each producer how many bytes it produced in that
time, on one line.
"""

from __future__ import annotations

import sys

import trio

from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.record_batch import build_batch
from korvet.protocol.requests import encode_request

RECORD = bytes(2_500)
TOPIC = "greedy"


def request(client_id: str, value: bytes) -> bytes:
    """Return the frame of a Produce request of one record."""
    records = bytes(build_batch([(0, 1, None, value, ())]))
    data = [PartitionProduceData(index=0, records=(records,))]
    body = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)]
    )
    return b"".join(encode_request(body, 9, 1, client_id))


async def exchange(stream: trio.SocketStream, frame: bytes) -> None:
    """Send a request, and receive its response."""
    await stream.send_all(frame)
    received = b""
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
        received += await stream.receive_some()


async def produce(port: int, client_id: str, begin: float, end: float, produced: dict[str, int]) -> None:
    """Produce until `end`, and count the bytes of requests that are answered after `begin`, on Trio's clock."""
    frame = request(client_id, RECORD)
    produced[client_id] = 0
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.move_on_at(end):
            while True:
                await exchange(stream, frame)
                if trio.current_time() >= begin:
                    produced[client_id] += len(frame)


async def main(port: int, count: int, prefix: str, before_s: float, measured_s: float) -> None:
    begin = trio.current_time() + before_s
    produced: dict[str, int] = {}
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(produce, port, f"{prefix}{number}", begin, begin + measured_s, produced)
    sys.stdout.write(" ".join(map(str, produced.values())) + "\n")


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
