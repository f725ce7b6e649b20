"""Read batches and bounds from streams, look offsets up by time, and wait for new entries."""
