"""The configuration of an EAGLE-3 head: its one decoder layer, its inputs and its vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.config import CONFIG_NAME, ModelConfig, read_decoder
from engine.checkpoint.files import JsonObject, read_json
from engine.errors import UnsupportedModelError

ARCHITECTURES = frozenset({"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"})
_NUM_FEATURES = 3
_HEAD_KEYS = frozenset({"draft_vocab_size", "eagle_config"})  # refused in whole models


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config:
    """Shape and settings of an EAGLE-3 head.

    Attributes:
        decoder: Its decoder layer; `vocab_size` is the target's.
        draft_vocab_size: Tokens it can draft.
        target_hidden_size: Width of one of the target's states.
        feature_layers: The three states it reads: X is the input of the target's layer X, the
            meaning in the reference and in vLLM (Hugging Face's `hidden_states[X]`).
        norm_before_residual: The residual is the normed feature instead of the feature itself.
    """

    decoder: ModelConfig
    draft_vocab_size: int
    target_hidden_size: int
    feature_layers: tuple[int, ...]
    norm_before_residual: bool


def is_eagle3(folder: Path) -> bool:
    """Tell whether a model folder holds an EAGLE-3 head.

    Raises:
        CheckpointError: There is no readable `config.json`.
    """
    listed = read_json(folder / CONFIG_NAME).values.get("architectures")
    return listed in [[name] for name in ARCHITECTURES]


def read_eagle3_config(folder: Path) -> Eagle3Config:
    """Read `config.json` of an EAGLE-3 head.

    Two keys must be written out: readers disagree on what their absence means, and a wrong guess
    drafts badly without any error.

    Raises:
        CheckpointError: A required key is missing or malformed.
        UnsupportedModelError: The head computes something that the engine does not.
    """
    config = read_json(folder / CONFIG_NAME)
    shared = {key: value for key, value in config.values.items() if key not in _HEAD_KEYS}
    decoder = read_decoder(JsonObject(config.path, shared), folder, "LlamaForCausalLM")
    if decoder.num_layers != 1:
        raise UnsupportedModelError(
            str(config.error("num_hidden_layers", "only heads of one layer are supported"))
        )
    if config.values.get("norm_before_residual") is None:
        raise config.error("norm_before_residual", "must be written out, true or false")
    for key in ("norm_output", "norm_before_fc", "fc_norm"):
        if config.flag(key, default=False):
            raise UnsupportedModelError(str(config.error(key, "EAGLE-3.1 is not supported")))
    size = decoder.vocab_size
    return Eagle3Config(
        decoder=decoder,
        draft_vocab_size=config.integer("draft_vocab_size", low=1, high=size),
        target_hidden_size=config.integer(
            "target_hidden_size", low=1, high=2**20, default=decoder.hidden_size
        ),
        feature_layers=_read_feature_layers(config),
        norm_before_residual=config.flag("norm_before_residual", default=False),
    )


def _read_feature_layers(config: JsonObject) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    inner = config.child("eagle_config")
    holder = inner if inner is not None and inner.values.get(key) is not None else config
    layers = holder.values.get(key)
    if (
        not isinstance(layers, list)
        or len(layers) != _NUM_FEATURES
        or not all(isinstance(x, int) and not isinstance(x, bool) and x >= 0 for x in layers)
        or sorted(set(layers)) != layers
    ):
        raise holder.error(key, f"must list {_NUM_FEATURES} layers of the target, ascending")
    return tuple(layers)
