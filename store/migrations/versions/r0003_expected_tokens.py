"""What a block's rounds would emit on average, beside what they emitted."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; blocks of before do not know."""
    op.add_column("measurements", sa.Column("expected_tokens", sa.Double))
    op.add_column("measurements", sa.Column("num_rounds", sa.BigInteger))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("measurements", "num_rounds")
    op.drop_column("measurements", "expected_tokens")
