"""From a workload to requests of the engine: tokens, parameters, and reasons to skip."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from autotune.errors import TrafficError
from autotune.progress import Silent
from autotune.traffic.records import Message, SampledRequest
from autotune.traffic.workload import Workload, fingerprint
from autotune.tuning.requests import RequestSet, to_requests
from autotune.tuning.seeds import derive_seed
from engine.errors import TokenizerError
from engine.tokenizer import Tokenizer
from tests.support.checkpoints import H0

SECRET = "the secret text"


def workload_of(requests: list[SampledRequest], **skipped: int) -> Workload:
    """A workload from a file."""
    return Workload(
        source="file:x.jsonl",
        fingerprint=fingerprint(requests),
        requests=tuple(requests),
        skipped=skipped,
    )


def sampled(index: int, text: str = SECRET, **values: object) -> SampledRequest:
    """A bare prompt."""
    defaults: dict[str, object] = {"prompt": text, "max_tokens": 8, "request_id": f"line-{index}"}
    return SampledRequest(**(defaults | values))  # type: ignore[arg-type]


def conversation(index: int, *turns: tuple[str, str]) -> SampledRequest:
    """A chat."""
    messages = tuple(Message(role=role, content=content) for role, content in turns)
    return SampledRequest(request_id=f"line-{index}", messages=messages, max_tokens=8)


def converted(
    workload: Workload,
    *,
    folder: Path = H0,
    num_requests: int = 100,
    seed: int = 0,
    max_len: int = 64,
    vocab_size: int = 260,
    notes: list[str] | None = None,
) -> RequestSet:
    """The requests for a tiny model."""
    progress = Silent()
    try:
        return to_requests(
            workload,
            Tokenizer(folder),
            progress,
            num_requests=num_requests,
            seed=seed,
            max_len=max_len,
            vocab_size=vocab_size,
        )
    finally:
        if notes is not None:
            notes += progress.notes


def with_template(folder: Path, template: str | None) -> Path:
    """H0's tokenizer with another chat template, or with none."""
    shutil.copytree(H0, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["chat_template"]
    path.write_text(json.dumps(config | ({"chat_template": template} if template else {})))
    return folder


def test_prompts_are_taken_as_they_stand() -> None:
    """A completions request is its text; one token per byte here."""
    (request,) = converted(workload_of([sampled(1, "ab c")])).requests

    assert bytes(request.prompt_tokens) == b"ab c"


def test_chats_go_through_the_template() -> None:
    """Ending where the assistant's answer begins."""
    workload = workload_of([conversation(1, ("system", "be brief"), ("user", "hi"))])

    (request,) = converted(workload).requests

    assert bytes(request.prompt_tokens) == b"<system>be brief\n<user>hi\n<assistant>"


def test_parameters_are_the_requests_own() -> None:
    """Sampling, length, task and stops of a single token."""
    (request,) = converted(
        workload_of(
            [
                sampled(
                    1, temperature=0.6, top_p=0.9, top_k=7, max_tokens=5, task="code", stop=("x",)
                )
            ]
        )
    ).requests

    params = request.params
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.9, 7)
    assert (params.max_tokens, request.task) == (5, "code")
    assert params.stop_token_ids == {ord("x")}
    assert not params.ignore_eos


def test_every_request_has_a_seed_of_its_own() -> None:
    """Equal requests answer differently, another run's seed gives other answers."""
    workload = workload_of([sampled(i, "same", seed=3) for i in range(4)])

    first, again, other = (
        [r.params.seed for r in converted(workload, seed=seed).requests] for seed in (0, 0, 1)
    )

    assert first == again
    assert len({*first, *other}) == 8


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (sampled(9, stop=("ab",)), "stop string of more than one token"),
        (sampled(9, stop=("a", "")), "stop string of more than one token"),
        (sampled(9, ""), "empty prompt"),
        (sampled(9, "x" * 57), "longer than max_len = 64 tokens"),
        (sampled(9, max_tokens=64), "longer than max_len = 64 tokens"),
        (sampled(9, "<eot>"), "token outside the model's vocabulary"),
    ],
)
def test_what_the_model_cannot_answer_is_skipped_by_reason(
    bad: SampledRequest, reason: str
) -> None:
    """Counted beside what the reader skipped; the workload is what is left."""
    notes: list[str] = []
    good = sampled(1)

    found = converted(workload_of([good, bad], **{"not JSON": 2}), vocab_size=259, notes=notes)

    assert found.workload.requests == (good,)
    assert found.workload.skipped == {"not JSON": 2, reason: 1}
    assert found.workload.fingerprint == fingerprint([good])
    assert [request.request_id for request in found.requests] == ["0"]
    (note,) = notes
    assert note.startswith("requests skipped: ")
    assert f"1 {reason}" in note
    assert "2 not JSON" in note
    assert SECRET not in note


def test_exactly_max_len_fits() -> None:
    """Prompt and answer together may fill the slot."""
    assert converted(workload_of([sampled(1, "x" * 56)])).longest == 64


def test_messages_that_a_template_refuses_are_skipped(tmp_path: Path) -> None:
    """Some templates take no system prompt; the other requests go on."""
    folder = with_template(
        tmp_path / "model",
        "{% if messages[0].role == 'system' %}{{ raise_exception('no: ' + messages[0].content) }}"
        "{% endif %}{{ messages[0].content }}",
    )
    notes: list[str] = []
    workload = workload_of(
        [
            conversation(1, ("system", SECRET), ("user", "hi")),
            conversation(2, ("user", "hello")),
        ]
    )

    found = converted(workload, folder=folder, notes=notes)

    assert len(found.requests) == 1
    assert found.workload.skipped == {"refused by the chat template": 1}
    assert notes == ["requests skipped: 1 refused by the chat template"]


def test_chats_for_a_model_without_template_are_an_error(tmp_path: Path) -> None:
    """The message names the folder and the remedy."""
    folder = with_template(tmp_path / "base", None)

    with pytest.raises(TokenizerError, match="base: has no chat template"):
        converted(workload_of([conversation(1, ("user", "hi"))]), folder=folder)


def test_no_usable_request_is_one_line() -> None:
    """The source and the counts, and none of the text."""
    workload = workload_of([sampled(1, SECRET * 9), sampled(2, stop=("ab",))], tools=3)

    with pytest.raises(TrafficError) as caught:
        converted(workload)

    assert str(caught.value) == (
        "file:x.jsonl: no request can be used with this model (1 longer than max_len = 64 tokens, "
        "1 stop string of more than one token, 3 tools)"
    )


def test_a_sample_is_taken_first() -> None:
    """As many as asked for, tasks in proportion; requests and workload stay side by side."""
    requests = [sampled(i, f"text {i}", task="ab"[i % 2]) for i in range(20)]

    found = converted(workload_of(requests), num_requests=6)

    assert len(found.requests) == len(found.workload.requests) == 6
    assert Counter(request.task for request in found.requests) == {"a": 3, "b": 3}
    assert [bytes(r.prompt_tokens).decode() for r in found.requests] == [
        r.prompt for r in found.workload.requests
    ]


def test_what_fits_into_memory_is_a_fair_sample() -> None:
    """A task at the end of the file is not cut off; requests and workload still agree."""
    requests = [sampled(i, "x" * 12, task="a" if i < 20 else "b") for i in range(40)]
    whole = converted(workload_of(requests))

    fitted = whole.fit(20 * 10 * 3, bytes_per_token=3, seed=0)

    assert len(fitted.requests) == 10
    assert Counter(request.task for request in fitted.requests) == {"a": 5, "b": 5}
    assert fitted.workload.fingerprint == fingerprint(fitted.workload.requests)
    by_id = dict(zip(whole.workload.requests, whole.requests, strict=True))
    assert fitted.requests == tuple(by_id[request] for request in fitted.workload.requests)


def test_requests_of_unequal_length_fit_too() -> None:
    """The sample is cut until its tokens have room."""
    requests = [sampled(i, "x" * (1 + 3 * (i % 17))) for i in range(60)]

    fitted = converted(workload_of(requests)).fit(500.0, bytes_per_token=1, seed=4)

    tokens = sum(len(r.prompt_tokens) + r.params.max_tokens for r in fitted.requests)
    assert 250 < tokens <= 500


def test_enough_memory_changes_nothing() -> None:
    """Everything is used."""
    whole = converted(workload_of([sampled(i) for i in range(5)]))

    assert whole.fit(1e9, bytes_per_token=8, seed=0) is whole


def test_two_requests_are_kept_in_any_case() -> None:
    """Below that nothing could be said about the choice of requests."""
    whole = converted(workload_of([sampled(i) for i in range(5)]))

    assert len(whole.fit(1.0, bytes_per_token=8, seed=0).requests) == 2


def test_seeds_depend_on_all_parts() -> None:
    """And fit a signed integer of 64 bits."""
    seeds = {derive_seed(*parts) for parts in [(0, "a"), (0, "b"), (1, "a"), (0, "a", 1), ("0a",)]}

    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "a") == derive_seed(0, "a")
