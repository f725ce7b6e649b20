"""Spark's side: a data source named `korvet` for topics, and the jobs that use it.

Nothing here is imported by the broker. `pyspark_korvet` leads Spark here; what Spark pickles and sends to its workers
imports this package there, so every worker needs korvet installed (or shipped with `--py-files`).
"""
