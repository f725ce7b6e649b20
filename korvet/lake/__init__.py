"""Lake tables: what is archived of a topic, how far, and where. Nothing here needs Spark."""
