"""The contract suite, divided into modules by subject; `korvet.testing.storage_contract` combines them."""
