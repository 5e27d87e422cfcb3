"""From decision and evidence to the document: every figure in its place."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest

from autotune.document import PublishedConfig
from autotune.progress import Silent
from autotune.tuning.acceptance import AcceptanceProfile, profile_drafters
from autotune.tuning.prior import Prior
from autotune.tuning.publish import build_document, scope_of, tuner_version
from autotune.tuning.session import Session
from engine.drafters.factory import DrafterSpec
from engine.latency import CostCell, CostTable
from policies.decide import decide
from policies.estimate import confidence_interval, gain
from policies.types import (
    DEFAULT_MARGINS,
    CellEvidence,
    Decision,
    Envelope,
    PairedEstimate,
    SpeculativeConfig,
)
from store.records import PublicationSlot
from tests.support.sessions import memory_session
from tests.support.tiny_models import random_prompt, request, similar_draft
from tests.unit.policies.builders import arm, estimate

NOW = datetime(2026, 4, 5, 6, 7, tzinfo=UTC)
SLOT = PublicationSlot(epoch="epoch", generation=4, previous=3, created_at=NOW)
ENVELOPE = Envelope(drafter="draft", max_num_speculative_tokens=3, draft_temperature=0.7)
IDLE = SpeculativeConfig(drafter="draft")


@cache
def session() -> Session:
    """Two tasks, two temperatures, one draft model."""
    found = memory_session(
        [
            request(random_prompt(i, 6), name=f"{i}", temperature=float(i % 2), max_tokens=12)
            for i in range(4)
        ],
        {"draft": similar_draft},
        batch_sizes=(1, 4),
        draft_temperatures=(None, 0.7),
        max_num_speculative_tokens=3,
    )
    spec = DrafterSpec(name="draft", method="draft_model", folder=found.target.folder / "small")
    return replace(found, specs={"draft": spec})


@cache
def acceptance() -> AcceptanceProfile:
    """Replayed once."""
    return profile_drafters(session(), Silent())


@cache
def prior() -> Prior:
    """Made-up costs: 10 ms a step, 1 ms a token more, 2 ms a proposal."""
    cells = [
        CostCell(
            kind="verify",
            drafter=None,
            batch_size=b,
            num_speculative_tokens=k,
            num_tokens=b * (1 + k),
            seconds=(0.01 + 0.001 * b * k,),
        )
        for b in (1, 4)
        for k in (0, 3)
    ] + [
        CostCell(
            kind="draft",
            drafter="draft",
            batch_size=b,
            num_speculative_tokens=1,
            num_tokens=b,
            seconds=(0.002,),
        )
        for b in (1, 4)
    ]
    return Prior(acceptance(), CostTable(cells))


def evidence(*, large: float = -0.2, idle: float = 0.0) -> list[CellEvidence]:
    """K = 3 gains 40 % at batch 1 and something else at batch 4; the idle drafter there."""
    found = []
    for batch_size, measured in ((1, 0.4), (4, large)):
        cell = arm(batch_size, 3, explored=estimate(measured + 0.1), validated=estimate(measured))
        found.append(
            replace(
                cell,
                config=replace(cell.config, drafter="draft", draft_temperature=0.7),
            )
        )
    found.append(CellEvidence(batch_size=4, config=IDLE, validated=estimate(idle)))
    return found


def document(found: list[CellEvidence], decision: Decision | None = None) -> PublishedConfig:
    """The document of a decision on that evidence."""
    return build_document(
        SLOT,
        session=session(),
        acceptance=acceptance(),
        prior=prior(),
        decision=decision or decide(found, ENVELOPE),
        evidence=found,
        margins=DEFAULT_MARGINS,
        run_id="run",
    )


def test_it_survives_its_own_bytes() -> None:
    """What is stored and served is read back unchanged; equal documents give equal bytes."""
    published = document(evidence())

    assert PublishedConfig.model_validate_json(published.to_bytes()) == published
    assert document(evidence()).to_bytes() == published.to_bytes()
    assert published.to_bytes().endswith(b"}\n")


def test_identity_comes_from_the_stores_slot() -> None:
    """Epoch, generation and times; it expires after it asks to be refreshed."""
    identity = document(evidence()).identity

    assert (identity.epoch, identity.generation, identity.previous) == ("epoch", 4, 3)
    assert identity.created == NOW
    assert NOW < identity.refresh_after < identity.expires
    assert identity.expires - NOW >= timedelta(days=1)
    assert identity.on_expiry == "keep"
    assert identity.tuner_version == tuner_version()


def test_what_it_is_valid_for() -> None:
    """Model, device and workload are those of the session."""
    published = document(evidence())

    assert published.match.target.fingerprint == session().target.fingerprint
    assert published.match.device.fingerprint == session().device.fingerprint
    assert published.match.device.name == "Test CPU"
    assert published.workload.source == "file:test.jsonl"
    assert published.workload.num_requests == 4
    assert published.workload.share_by_temperature == {"0": 0.5, "(0.8,1]": 0.5}
    assert published.run_id == "run"


def test_a_loaded_drafter_and_its_cells() -> None:
    """Envelope with what a server must load; K per cell, off by K = 0; a tail without end."""
    published = document(evidence())

    assert published.envelope.drafter == "draft"
    assert published.envelope.method == "draft_model"
    assert published.envelope.draft_temperature == 0.7
    assert published.envelope.max_num_speculative_tokens == 3
    assert published.envelope.draft_parameters == {"model": "/nowhere/small"}
    assert [
        (c.bs_lo, c.bs_hi, c.num_speculative_tokens, c.off_mode) for c in published.schedule
    ] == [
        (1, 1, 3, None),
        (2, 3, 0, "k0"),
        (4, 4, 0, "k0"),
        (5, None, 0, "k0"),
    ]
    assert [published.num_speculative_tokens(b) for b in (1, 2, 4, 1000)] == [3, 0, 0, 0]


def test_figures_of_a_cell_that_speculates() -> None:
    """The validated estimate with its interval, the prediction, and replayed acceptance."""
    cell = document(evidence()).evidence[0]
    config = SpeculativeConfig(drafter="draft", num_speculative_tokens=3, draft_temperature=0.7)
    wanted = estimate(0.4)

    assert (cell.batch_size, cell.drafter, cell.num_speculative_tokens) == (1, "draft", 3)
    assert cell.draft_temperature == 0.7
    assert cell.measured is not None
    assert cell.measured.gain == pytest.approx(0.4)
    assert (cell.measured.low, cell.measured.high) == pytest.approx(
        tuple(gain(end) for end in confidence_interval(wanted, 0.95))
    )
    assert cell.measured.num_blocks == wanted.num_blocks
    assert cell.best_candidate_measured == cell.measured
    assert cell.predicted_tokens_per_s == prior().tokens_per_s(config, 1)
    assert cell.predicted_off_tokens_per_s == pytest.approx(100.0)
    assert cell.tpot_s_baseline == pytest.approx(0.01)
    assert cell.tpot_s == pytest.approx(0.01 / 1.4)
    counts = acceptance().replay(config)
    assert cell.num_accepted_tokens_per_pos == pytest.approx(
        counts.num_accepted_per_pos.sum(dim=0).tolist()
    )
    assert cell.num_drafts == pytest.approx(float(counts.num_rounds_by_drafts[:, 1:].sum()))


def test_figures_of_a_cell_that_idles() -> None:
    """Its own cost is measured; what was tried instead stands beside it."""
    cell = document(evidence(idle=-0.004)).evidence[1]

    assert (cell.batch_size, cell.drafter, cell.num_speculative_tokens) == (4, "draft", 0)
    assert cell.measured is not None
    assert cell.measured.gain == pytest.approx(-0.004)
    assert cell.best_candidate is not None
    assert cell.best_candidate.config() == SpeculativeConfig(
        drafter="draft", num_speculative_tokens=3, draft_temperature=0.7
    )
    assert cell.best_candidate_measured is not None
    assert cell.best_candidate_measured.gain == pytest.approx(-0.2)
    assert cell.num_accepted_tokens_per_pos == ()
    assert cell.num_drafts is None


def test_off_is_the_baseline_itself() -> None:
    """Nothing to load, nothing measured against itself, the rejected arm still shown."""
    found = [
        replace(cell, validated=estimate(-0.1)) for cell in evidence() if cell.config.speculates
    ]
    published = document(found)

    assert published.envelope.drafter == "off"
    assert published.envelope.method == "none"
    assert published.envelope.draft_parameters == {}
    assert {cell.off_mode for cell in published.schedule} == {"unload"}
    assert {cell.num_speculative_tokens for cell in published.schedule} == {0}
    for cell in published.evidence:
        assert cell.drafter == "off"
        assert cell.measured is None
        assert cell.best_candidate_measured is not None
        assert cell.predicted_tokens_per_s == cell.predicted_off_tokens_per_s


def test_the_rules_are_written_down() -> None:
    """Margins and the rule between sizes, so that a reader can follow the decision."""
    policy = document(evidence()).policy

    assert (policy.hot_margin, policy.restart_margin) == (0.01, 0.03)
    assert (policy.harm_limit, policy.confidence) == (0.01, 0.95)
    assert "smaller K" in policy.between_sizes
    assert policy.lossless


def test_the_scope_tells_targets_devices_and_traffic_apart() -> None:
    """Generations are counted for each combination."""
    base = session()
    others = [
        replace(base, target=replace(base.target, fingerprint="0" * 64)),
        replace(base, device=replace(base.device, cores=99)),
        replace(base, workload=replace(base.workload, source="default")),
    ]

    assert len({scope_of(one) for one in (base, *others)}) == 4
    assert scope_of(base).endswith("/file:test.jsonl")


def test_fresh_blocks_are_published_before_those_of_the_search() -> None:
    """The search's own figure of the best arm is too good by selection."""
    cell = document(evidence()).evidence[0]
    explored: PairedEstimate | None = evidence()[0].explored

    assert explored is not None
    assert cell.measured is not None
    assert cell.measured.gain < gain(explored.log_gain)
