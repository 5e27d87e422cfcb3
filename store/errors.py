"""Everything the store raises on purpose.

    StoreError
    ├── StoreLocationError       the path or URL can never hold a store
    ├── StoreNotFoundError       nothing has been stored there yet
    ├── StoreUnavailableError    it cannot be opened, read or written right now
    │   └── StoreBusyError       another process holds it
    ├── StoreReadOnlyError       a write was asked of a store that cannot be written
    ├── StoreCorruptError        the file is damaged
    ├── SchemaError              the tables are not the ones this version works with
    │   ├── SchemaOutdatedError      older: they must be migrated first
    │   ├── SchemaTooNewError        newer: this version must be upgraded first
    │   └── ForeignDatabaseError     another program's
    ├── RecordError              a value that cannot be stored (also a ValueError)
    ├── ConflictError            it contradicts what is stored already
    └── UnknownRecordError       nothing is stored under that name (also a LookupError)

Driver errors are translated into these once, in `store.session`. Messages name the file and
never hold a URL as it was given, because a URL may carry a password.
"""


class StoreError(Exception):
    """Base of everything the store raises; its text is one line, fit for the operator."""


class StoreLocationError(StoreError):
    """The path or URL can never hold a store."""


class StoreNotFoundError(StoreError):
    """Nothing has been stored at this path yet."""


class StoreUnavailableError(StoreError):
    """The store cannot be opened, read or written right now."""


class StoreBusyError(StoreUnavailableError):
    """Another process holds the store; trying again later may work."""


class StoreReadOnlyError(StoreError):
    """A write was asked of a store that cannot be written."""


class StoreCorruptError(StoreError):
    """The file is damaged."""


class SchemaError(StoreError):
    """The tables are not the ones this version works with."""


class SchemaOutdatedError(SchemaError):
    """The tables are older than this version and must be migrated first."""


class SchemaTooNewError(SchemaError):
    """The tables were written by a newer version."""


class ForeignDatabaseError(SchemaError):
    """The database belongs to another program."""


class RecordError(StoreError, ValueError):
    """A value that cannot be stored."""


class ConflictError(StoreError):
    """The request contradicts what is stored already."""


class UnknownRecordError(StoreError, LookupError):
    """Nothing is stored under the name that was asked for."""
