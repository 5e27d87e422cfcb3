"""Alembic runs this file for every migration; `store.schema.move_to` supplies the connection.

The caller's transaction, which holds the write lock, spans the whole migration: it happens
as a whole or not at all.
"""

from alembic import context

from store.schema import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
