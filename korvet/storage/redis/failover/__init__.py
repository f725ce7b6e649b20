"""What a failover or a misconfigured server can lose: confirmations by replicas, and monitors of servers."""
