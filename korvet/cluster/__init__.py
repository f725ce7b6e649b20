"""The brokers that share a store as one Kafka cluster: which of them live, and what each of them leads and coordinates.

No wire messages, sockets or settings of topics here.
"""
