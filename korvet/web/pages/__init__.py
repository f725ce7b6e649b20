"""The pages: one module per subject.

Each handler takes the site, the request and the visitor, and returns a response.
"""
