"""Detect what a failover or a misconfigured server can lose: confirmations by replicas, monitors of servers."""
