"""The record of what was measured and what was published.

`store.repository.Store` is the way in; `store.records` holds what it takes and gives, and
`store.errors` what it raises. Nothing is imported here, so that asking for an error class
costs no database driver.
"""
