"""Where Spark finds the data source `korvet`: it looks into modules named pyspark_*, for this name."""

from korvet.pipeline.source import KorvetSource as DefaultSource  # noqa: F401  Spark's name for it
