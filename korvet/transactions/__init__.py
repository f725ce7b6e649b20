"""Transactions: the state machine of a transactional id, its document, and the coordinator.

The state of transactions in partitions belongs to the storage; wire messages and sockets are unknown here.
"""
