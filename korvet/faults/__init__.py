"""Faults that tests inject between the connections and the handlers of a broker.

`Faults.apis` wraps the table of APIs that a server dispatches by. A server without faults uses the table itself, so
faults cost nothing unless they are enabled. Handlers do not import this package.
"""
