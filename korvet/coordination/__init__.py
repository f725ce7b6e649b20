"""State machines that brokers share by key, and what runs them: loading, saving, deadlines, and where a key runs.

Nothing here knows what a machine decides, wire messages or sockets.
"""
