"""Alembic's home: `env.py` runs the scripts of `versions/` on a connection it is handed."""
