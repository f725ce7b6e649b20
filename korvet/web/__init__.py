"""The web page: topics, records, groups and brokers of a cluster, in a browser.

The page's server is a Kafka client. It reaches the cluster through `korvet.client` as the user who logged in, so the
cluster's users and ACLs apply, and it works with any Kafka. `korvet web` runs it alone, `korvet serve --web` beside a
broker.

It must not touch the broker's internals, and it bounds its work per request: it shares the broker's event loop.
"""
