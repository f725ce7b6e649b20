"""Registration of Delta tables in catalogues, where other programs find them by name."""
