"""`korvet serve --processes N`: one broker that is N processes, on the same ports and from the same Redis.

    parent     holds the ports, runs the embedded server where there is one, starts the others and starts them again
    worker     one of the N: the same server as without them, whose groups are led (`korvet.groups.leading`)
    forking    the process that workers are forked from
    control    what parent and worker say to each other

Nothing but groups has to be led: what is acknowledged is in Redis, and so is whatever decides about it. The kernel
spreads connections over the workers; a worker that ends takes its own connections with it and nothing else.
"""
