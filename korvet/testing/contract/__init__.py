"""The contract suite, a module for each kind of promise; `korvet.testing.storage_contract` joins them."""
