"""A published document as vLLM's `--speculative-config` value."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from autotune.document import Cell, PublishedConfig
from autotune.render.candidate import OFF_CANDIDATE, Candidate
from autotune.render.vllm import VllmExport, render_vllm
from tests.documents import LOOKUP, NGRAM, SCHEDULE, Method, cells, document, envelope, figures

FOLDERS = {"layer-skip-8": Path("/drafts/layer-skip-8"), "small": Path("/models/small")}


def render(config: PublishedConfig, **options: Any) -> VllmExport:
    """Render with the folders of every drafter with weights."""
    return render_vllm(config, draft_folders=FOLDERS, **options)


def test_ngram_golden() -> None:
    """The n-gram document, byte for byte: no gap, and the off tail has its K = 0 written out."""
    export = render(document(NGRAM), max_num_seqs=64)
    assert json.dumps(export.speculative_config) == (
        '{"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4, '
        '"num_speculative_tokens": 4, '
        '"num_speculative_tokens_per_batch_size": [[1, 7, 4], [8, 31, 2], [32, 64, 0]]}'
    )
    assert export.refused == ()
    assert export.offered is None


@pytest.mark.parametrize(
    ("drafter", "method"), [("layer-skip-8", "layer_skip"), ("small", "draft_model")]
)
@pytest.mark.parametrize(("temperature", "sampling"), [(None, "probabilistic"), (0.0, "greedy")])
def test_drafters_with_weights_golden(
    drafter: str, method: Method, temperature: float | None, sampling: str
) -> None:
    """Layer-skip and draft models load a folder; following the request is `probabilistic`."""
    export = render(document(envelope(drafter, method, 4, temperature)), max_num_seqs=40)
    assert export.speculative_config == {
        "method": "draft_model",
        "model": str(FOLDERS[drafter]),
        "draft_sample_method": sampling,
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 7, 4], [8, 31, 2], [32, 40, 0]],
    }
    assert export.refused == ()


def test_off_starts_vllm_without_speculation() -> None:
    """The off envelope has nothing to configure and nothing to refuse."""
    off = document(OFF_CANDIDATE.envelope, OFF_CANDIDATE.schedule)
    assert render(off) == VllmExport(speculative_config=None)


@pytest.mark.parametrize("max_num_seqs", [1, 7, 8, 9, 31, 32, 33, 256])
def test_the_table_says_what_the_document_says(max_num_seqs: int) -> None:
    """Every batch size up to the server's limit is in exactly one entry, with the document's K."""
    config = document(NGRAM)
    export = render(config, max_num_seqs=max_num_seqs)
    assert export.speculative_config is not None
    table = export.speculative_config["num_speculative_tokens_per_batch_size"]
    assert isinstance(table, list)
    covered = [(bs, k) for lo, hi, k in table for bs in range(lo, hi + 1)]
    expected = range(1, max_num_seqs + 1)
    assert covered == [(bs, config.num_speculative_tokens(bs)) for bs in expected]


def test_cells_beyond_the_server_are_left_out_and_said() -> None:
    """A cell above --max-num-seqs can never run; the note says where the cut is."""
    export = render(document(NGRAM), max_num_seqs=20)
    assert export.speculative_config is not None
    table = export.speculative_config["num_speculative_tokens_per_batch_size"]
    assert table == [[1, 7, 4], [8, 20, 2]]
    assert "left out, beyond --max-num-seqs: batch sizes from 32 up" in export.notes


@pytest.mark.parametrize("max_num_seqs", [7, 8])
def test_no_drafter_where_the_server_never_reaches_speculation(max_num_seqs: int) -> None:
    """If all reachable cells are K = 0, loading a drafter only costs: start without it."""
    config = document(NGRAM, cells((1, 0), (8, 4)))
    export = render(config, max_num_seqs=max_num_seqs)
    assert (export.speculative_config is None) == (max_num_seqs == 7)
    assert any("never speculates" in note for note in export.notes) == (max_num_seqs == 7)


def test_a_k_above_the_servers_maximum_is_reported() -> None:
    """Bug report B18: vLLM would clamp K silently; here it is a refusal, and off is offered."""
    export = render(document(NGRAM), max_num_seqs=64, max_k=3)
    assert export.speculative_config is None
    assert export.refused == (
        "num_speculative_tokens 4 at batch sizes 1..7: above the server's maximum of 3, to which "
        "vLLM would lower it without a word",
    )
    assert export.offered is not None
    assert export.offered.candidate == OFF_CANDIDATE
    assert export.offered.speculative_config is None


def test_a_k_above_the_envelope_is_reported() -> None:
    """A document that contradicts itself is not repaired by vLLM's silent clamp."""
    export = render(document(envelope("ngram", "ngram", 3, parameters=LOOKUP)), max_k=8)
    assert len(export.refused) == 1
    assert "above the envelope's maximum of 3" in export.refused[0]


def test_a_maximum_above_k_changes_nothing() -> None:
    """A roomier server does not raise what is started."""
    assert render(document(NGRAM), max_k=9) == render(document(NGRAM))


def test_a_continuous_draft_temperature_is_refused_by_name() -> None:
    """Without any measured alternative speculation off is offered: it cannot be slower."""
    published = envelope("layer-skip-8", "layer_skip", 4, 1.3)
    evidence = figures("layer-skip-8", {1: 0.9}, temperature=1.3)
    export = render(document(published, evidence=evidence), max_num_seqs=64)
    assert export.speculative_config is None
    assert export.refused == (
        "draft_temperature 1.3 (layer-skip-8): vLLM drafts greedily or at the temperature of the "
        "request, nothing else",
    )
    assert export.offered is not None
    assert export.offered.candidate == OFF_CANDIDATE
    assert "shown to gain" in export.offered.reason
    assert not any("measured_in" in note for note in export.notes)


def test_the_best_measured_alternative_is_offered_with_its_own_figures() -> None:
    """Chosen by its gains within the server's sizes; the refused document's gain plays no part."""
    published = envelope("layer-skip-8", "layer_skip", 4, 1.3)
    refused_figures = figures("layer-skip-8", {1: 0.9, 4: 0.8}, temperature=1.3)
    best = Candidate(
        envelope=envelope("layer-skip-8", "layer_skip", 3, 0.0),
        schedule=cells((1, 3), (8, 0)),
        evidence=figures("layer-skip-8", {1: 0.3, 4: 0.2}, temperature=0.0),
    )
    others = [
        Candidate(envelope=NGRAM, schedule=SCHEDULE, evidence=figures("ngram", {1: 0.35})),
        Candidate(
            envelope=envelope("small", "draft_model", 3),
            schedule=cells((1, 3)),
            evidence=figures("small", {1: 0.1, 512: 5.0}),
        ),
        Candidate(
            envelope=envelope("layer-skip-8", "layer_skip", 3, 0.7),
            schedule=cells((1, 3)),
            evidence=figures("layer-skip-8", {1: 2.0}, temperature=0.7),
        ),
        Candidate(envelope=envelope("small", "draft_model", 2), schedule=cells((1, 2))),
    ]
    export = render(
        document(published, evidence=refused_figures), alternatives=[*others, best], max_num_seqs=64
    )
    assert export.offered is not None
    assert export.offered.candidate == best
    assert export.offered.speculative_config == {
        "method": "draft_model",
        "model": str(FOLDERS["layer-skip-8"]),
        "draft_sample_method": "greedy",
        "num_speculative_tokens": 3,
        "num_speculative_tokens_per_batch_size": [[1, 7, 3], [8, 64, 0]],
    }


def test_off_is_offered_when_no_expressible_alternative_gains() -> None:
    """Never slower than off: a measured loss is not offered in place of what was refused."""
    loses = Candidate(envelope=NGRAM, schedule=SCHEDULE, evidence=figures("ngram", {1: -0.05}))
    published = envelope("layer-skip-8", "layer_skip", 4, 1.3)
    export = render(document(published), alternatives=[loses])
    assert export.offered is not None
    assert export.offered.candidate == OFF_CANDIDATE
    assert export.offered.speculative_config is None


def test_an_unmeasured_alternative_is_not_offered() -> None:
    """What nobody measured may be slower than off."""
    unmeasured = Candidate(
        envelope=NGRAM, schedule=SCHEDULE, evidence=figures("ngram", {1: None, 4: None})
    )
    export = render(
        document(envelope("layer-skip-8", "layer_skip", 4, 1.3)), alternatives=[unmeasured]
    )
    assert export.offered is not None
    assert export.offered.candidate == OFF_CANDIDATE


def test_figures_of_another_envelope_are_rejected() -> None:
    """Figures cannot be borrowed, not even by mistake of the caller."""
    with pytest.raises(ValueError, match=re.escape("= ('layer-skip-8', 1.3), but the envelope")):
        Candidate(
            envelope=envelope("layer-skip-8", "layer_skip", 3, 0.0),
            schedule=SCHEDULE,
            evidence=figures("layer-skip-8", {1: 0.9}, temperature=1.3),
        )


def test_figures_of_off_belong_to_every_envelope() -> None:
    """A size where off won carries off's name, whatever is loaded."""
    row = figures("off", {32: 0.0}, k=0)
    assert Candidate(envelope=NGRAM, schedule=SCHEDULE, evidence=row).evidence == row


def test_an_unknown_ngram_setting_is_refused_by_name() -> None:
    """Dropping a setting would serve something that was not measured."""
    published = envelope("ngram", "ngram", 4, parameters={**LOOKUP, "window": 512})
    export = render(document(published))
    assert export.refused == ("window 512 (ngram): vLLM's n-gram drafter has no such setting",)
    assert export.offered is not None


@pytest.mark.parametrize("kept", ["prompt_lookup_min", "prompt_lookup_max"])
def test_a_missing_lookup_length_is_an_error(kept: str) -> None:
    """VLLM would fill in a length that was not measured."""
    with pytest.raises(ValueError, match=r"prompt_lookup_m(in|ax) of drafter ngram is missing"):
        render(document(envelope("ngram", "ngram", 4, parameters={kept: 3})))


def test_a_drafter_without_a_folder_is_an_error() -> None:
    """The message names the drafter and the remedy."""
    with pytest.raises(ValueError, match=r"drafter small: .* name one in draft_folders"):
        render_vllm(document(envelope("small", "draft_model", 4)))


@pytest.mark.parametrize(
    "schedule",
    [
        SCHEDULE[1:],
        SCHEDULE[:-1],
        (SCHEDULE[0], SCHEDULE[2]),
        (),
    ],
    ids=["starts late", "no tail", "gap", "empty"],
)
def test_a_schedule_with_a_hole_is_an_error(schedule: tuple[Cell, ...]) -> None:
    """VLLM continues the previous K through a hole; the document never said so."""
    with pytest.raises(ValueError, match="schedule: no cell starts at batch size"):
        render(document(NGRAM, schedule))


@pytest.mark.parametrize("limit", ["max_num_seqs", "max_k"])
def test_limits_below_one_are_errors(limit: str) -> None:
    """A server with no slots or no draft tokens has no table."""
    with pytest.raises(ValueError, match=f"{limit} = 0: must be 1 or more"):
        render(document(NGRAM), **{limit: 0})


def test_notes_say_where_the_figures_come_from() -> None:
    """Own engine, shipped workload, provisional cells and the copied layers are all said."""
    first, *rest = SCHEDULE
    schedule = (first.model_copy(update={"status": "provisional"}), *rest)
    config = document(
        envelope("layer-skip-8", "layer_skip", 4),
        schedule,
        figures("layer-skip-8", {1: 0.3}),
        source="default",
    )
    assert render(config, max_num_seqs=64).notes == (
        "workload: default. Tuned on the requests shipped with spectuned, not on your traffic; "
        "tune on your own before serving with this",
        "measured_in: own_engine. The figures come from spectuned's engine on Test CPU, not from "
        "vLLM",
        "start vLLM with --max-num-seqs 64: the table ends there, and vLLM continues its last K "
        "beyond",
        "with --data-parallel-size above 1 vLLM drops the table and always drafts 4",
        "while it speculates, vLLM does not serve min_p and logit_bias as asked",
        "provisional, not yet validated: batch sizes 1..7",
        "at K = 0 the drafter stays in memory, and vLLM may still run it",
        "layer-skip-8: vLLM loads the draft folder beside the target, so these layers are in "
        "memory twice and have a KV cache of their own",
    )


def test_notes_stay_silent_when_there_is_nothing_to_say() -> None:
    """Own traffic, validated cells, K > 0 everywhere: only the facts about the server."""
    export = render(document(NGRAM, cells((1, 4))), max_num_seqs=64)
    assert [note.split(" ")[0] for note in export.notes] == ["start", "with", "while"]
