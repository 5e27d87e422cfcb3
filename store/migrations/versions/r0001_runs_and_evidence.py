"""The store's identity, runs, and the evidence they gather.

Measurements are a ledger: SQLite triggers refuse to change or delete them. On PostgreSQL the
same is had from a trigger that raises, or by revoking UPDATE and DELETE from the daemon's role.
"""

import uuid
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ROW_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Create the tables and give the store its epoch."""
    identity = op.create_table(
        "store_identity",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.String, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    op.bulk_insert(
        identity, [{"id": 1, "epoch": uuid.uuid4().hex, "created_at": datetime.now(UTC)}]
    )
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False, index=True),
        sa.Column("target_name", sa.String, nullable=False),
        sa.Column("target_fingerprint", sa.String, nullable=False),
        sa.Column("device_name", sa.String, nullable=False),
        sa.Column("device_fingerprint", sa.String, nullable=False),
        sa.Column("workload_source", sa.String, nullable=False),
        sa.Column("workload_fingerprint", sa.String, nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("dtype", sa.String, nullable=False),
        sa.Column("tuner_version", sa.String, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("status", sa.String, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("finished_at", sa.DateTime(timezone=True)),
        sa.Column("owner", sa.String, nullable=False),
    )
    _create_evidence(
        "measurements",
        sa.Column("batch_size", sa.BigInteger, nullable=False),
        sa.Column("drafter", sa.String, nullable=False),
        sa.Column("num_speculative_tokens", sa.BigInteger, nullable=False),
        sa.Column("draft_temperature", sa.Double),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("trial_number", sa.BigInteger),
        sa.Column("proposed_by", sa.String, nullable=False),
        sa.Column("block_index", sa.BigInteger, nullable=False),
        sa.Column("baseline_tokens", sa.BigInteger, nullable=False),
        sa.Column("baseline_s", sa.Double, nullable=False),
        sa.Column("candidate_tokens", sa.BigInteger, nullable=False),
        sa.Column("candidate_s", sa.Double, nullable=False),
        sa.Column("num_drafts", sa.BigInteger, nullable=False),
        sa.Column("num_draft_tokens", sa.BigInteger, nullable=False),
        sa.Column("num_accepted_tokens", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disturbed", sa.Boolean, nullable=False),
    )
    for action in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER measurements_no_{action.lower()} BEFORE {action} ON measurements "
            "BEGIN SELECT RAISE(ABORT, 'measurements are never changed or deleted'); END"
        )
    # INSERT OR REPLACE would delete a row without asking the triggers above.
    op.execute(
        "CREATE TRIGGER measurements_no_replace BEFORE INSERT ON measurements "
        "WHEN EXISTS (SELECT 1 FROM measurements WHERE id = NEW.id) "
        "BEGIN SELECT RAISE(ABORT, 'measurements are never changed or deleted'); END"
    )
    _create_evidence(
        "failures",
        sa.Column("batch_size", sa.BigInteger, nullable=False),
        sa.Column("drafter", sa.String, nullable=False),
        sa.Column("num_speculative_tokens", sa.BigInteger, nullable=False),
        sa.Column("draft_temperature", sa.Double),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
    )
    _create_evidence(
        "acceptance",
        sa.Column("drafter", sa.String, nullable=False),
        sa.Column("draft_temperature", sa.Double),
        sa.Column("num_speculative_tokens", sa.BigInteger, nullable=False),
        sa.Column("task", sa.String, nullable=False),
        sa.Column("temperature", sa.Double, nullable=False),
        sa.Column("num_requests", sa.BigInteger, nullable=False),
        sa.Column("num_output_tokens", sa.BigInteger, nullable=False),
        sa.Column("expected_rounds", sa.Double, nullable=False),
        sa.Column("tokens_per_round", sa.Double, nullable=False),
        sa.Column("tokens_per_round_std_error", sa.Double),
        sa.Column("num_drafts", sa.Double, nullable=False),
        sa.Column("num_draft_tokens", sa.Double, nullable=False),
        sa.Column("num_accepted_tokens_per_pos", sa.JSON, nullable=False),
        sa.Column("source", sa.String, nullable=False),
    )
    _create_evidence(
        "costs",
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("drafter", sa.String),
        sa.Column("batch_size", sa.BigInteger, nullable=False),
        sa.Column("num_tokens", sa.BigInteger, nullable=False),
        sa.Column("num_speculative_tokens", sa.BigInteger, nullable=False),
        sa.Column("seconds_median", sa.Double, nullable=False),
        sa.Column("seconds_low", sa.Double, nullable=False),
        sa.Column("seconds_high", sa.Double, nullable=False),
        sa.Column("num_samples", sa.BigInteger, nullable=False),
    )
    _create_evidence(
        "predictions",
        sa.Column("batch_size", sa.BigInteger, nullable=False),
        sa.Column("drafter", sa.String, nullable=False),
        sa.Column("num_speculative_tokens", sa.BigInteger, nullable=False),
        sa.Column("draft_temperature", sa.Double),
        sa.Column("tokens_per_s", sa.Double, nullable=False),
        sa.Column("off_tokens_per_s", sa.Double, nullable=False),
        sa.Column("request_std_error", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Drop the tables, those that refer to runs first."""
    for table in ("predictions", "costs", "acceptance", "failures", "measurements"):
        op.drop_table(table)
    op.drop_table("runs")
    op.drop_table("store_identity")


def _create_evidence(name: str, *columns: "sa.Column[object]") -> None:
    """A table whose rows belong to a run."""
    op.create_table(
        name,
        sa.Column("id", ROW_ID, primary_key=True),
        sa.Column("run_id", sa.String, sa.ForeignKey("runs.run_id"), nullable=False, index=True),
        *columns,
    )
