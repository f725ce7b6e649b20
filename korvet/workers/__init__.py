"""`korvet serve --processes N`: one broker with N processes that share its ports and its Redis.

    parent     holds the ports, runs the embedded server if configured, starts and restarts the workers
    worker     one of the N: the same server as in a single process, with its share of the groups (`groups`)
    forking    the process that workers are forked from
    control    the messages between parent and worker

Only groups are sharded: acknowledged records, and the state that decides about them, are in Redis. The kernel spreads
connections over the workers. If a worker ends, only its own connections are lost.
"""
