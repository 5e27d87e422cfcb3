"""The published generations.

SQLite triggers refuse to change or delete a row and to skip or reuse a generation. On
PostgreSQL the same takes a trigger function that raises (or REVOKE UPDATE, DELETE, TRUNCATE);
the order of generations then rests on the row lock that `store.publications` takes.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the table and what guards it."""
    op.create_table(
        "publications",
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("scope", sa.String, nullable=False),
        sa.Column("epoch", sa.String, nullable=False),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.run_id"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.UniqueConstraint("scope", "generation", name="uq_publications_generation"),
    )
    for action in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER publications_no_{action.lower()} BEFORE {action} ON publications "
            "BEGIN SELECT RAISE(ABORT, 'publications are never changed or deleted'); END"
        )
    # Also stops INSERT OR REPLACE, which would delete a row without asking the triggers above.
    op.execute(
        "CREATE TRIGGER publications_in_order BEFORE INSERT ON publications "
        "WHEN NEW.generation <> 1 + coalesce("
        "(SELECT max(generation) FROM publications WHERE scope = NEW.scope), 0) "
        "OR EXISTS (SELECT 1 FROM publications WHERE id = NEW.id) "
        "BEGIN SELECT RAISE(ABORT, 'generations follow each other without gaps'); END"
    )


def downgrade() -> None:
    """Drop the table; its triggers go with it."""
    op.drop_table("publications")
