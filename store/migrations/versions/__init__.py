"""One module per revision, in the order of `store.schema.REVISIONS`."""
