"""Kafka's protocol: bytes to messages and back. No IO and no clock; imports nothing of korvet outside itself."""
