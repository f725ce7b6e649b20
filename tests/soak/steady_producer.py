"""An idempotent producer of librdkafka that sends numbered records at a steady rate.

Arguments: the bootstrap server, the number of records per topic, the pause between two records of a topic in
milliseconds, the topics. The program sends the number -1 to the first topic, prints "ready", and waits for a line on
standard input. Then it sends the numbers from 0 to partition 0 of each topic, each in a separate batch. When all have a
result, it prints a line for each record: topic, number, error, separated by tabs.
"""

from __future__ import annotations

import sys

from confluent_kafka import KafkaError, Message, Producer


def main(bootstrap_servers: str, records: int, pause_ms: int, topics: list[str]) -> None:
    lines: list[str] = []

    def note(error: KafkaError | None, message: Message) -> None:
        value = message.value() or b""
        lines.append(f"{message.topic()}\t{value.decode()}\t{error or ''}")

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.produce(topics[0], "-1", "steady", partition=0)
    producer.flush()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()

    for number in range(records):
        for topic in topics:
            producer.produce(topic, str(number), "steady", partition=0, on_delivery=note)
        producer.poll(pause_ms / 1000)
    producer.flush()
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
