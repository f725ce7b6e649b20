"""Append batches: pack them for the script, queue them by partition, and call the script."""
