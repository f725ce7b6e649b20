"""`korvet top`: a live view of topics, groups and brokers in a terminal, of any Kafka.

`sampling.py` reads a cluster through the client, on Trio; `figures.py` reads korvet's metrics, if a URL is given;
`tables.py` turns two samples into rows; `app.py` shows them with Textual, and alone imports it.
"""
