"""Copy a topic in a transactional stream, as a program also in a process that a test may kill.

python -m tests.pipeline.transactional_copy BOOTSTRAP-SERVERS SOURCE TARGET CHECKPOINT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from korvet.pipeline.session import spark_session


def copy(spark: SparkSession, servers: str, source: str, target: str, checkpoint: str) -> None:
    """Copy all records that the source has at the start of the query."""
    rows = (
        spark.readStream.format("korvet")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 3000)
        .load()
    )
    query = (
        rows.selectExpr("key", "value")
        .writeStream.format("korvet")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("kafka.transactional.id", target)
        .option("kafka.transaction.timeout.ms", 30_000)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    copy(spark_session("korvet-copy", master="local[2]", settings={}, quick_java=True), *sys.argv[1:])
