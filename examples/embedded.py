"""A broker inside your own Trio program: started, used and gone within one block.

    .venv/bin/python examples/embedded.py

The broker keeps its records in memory and listens on a free port. A test suite may start one for each test: that takes
a few milliseconds.
"""

from __future__ import annotations

import trio
from confluent_kafka import Consumer, Producer

import korvet


def send_and_receive(bootstrap_servers: str) -> list[str]:
    """Send three records and read them, as any program with a Kafka client does."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for fruit in ("apple", "banana", "cherry"):
        producer.produce("fruits", fruit)
    producer.flush()

    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["fruits"])
    received: list[str] = []
    while len(received) < 3:
        message = consumer.poll(1.0)
        if message is not None:
            received.append((message.value() or b"").decode())
    consumer.close()
    return received


async def main() -> None:
    """Run a broker, and let a client in another thread use it."""
    async with korvet.open_server() as server:
        received = await trio.to_thread.run_sync(send_and_receive, server.bootstrap_servers)
    print(", ".join(received))


if __name__ == "__main__":
    trio.run(main)
