"""Small seeded models that live in memory, engines around them, and drafters for them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.checkpoint.config import ModelConfig
from engine.drafters.base import Drafter
from engine.drafters.model import LayerSkipDrafter, ModelDrafter
from engine.drafters.ngram import NgramDrafter
from engine.engine import Engine
from engine.kv_cache import KvCache
from engine.model import Transformer
from engine.request import Request
from engine.sampling import SamplingParams
from tests.support.eagle3 import eagle3


def tiny_config(
    *, num_layers: int = 3, vocab_size: int = 12, num_kv_heads: int = 2, max_len: int = 256
) -> ModelConfig:
    """A grouped-query model of width 16 with heads that do not add up to the width."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=24,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=num_kv_heads,
        head_dim=6,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        tie_word_embeddings=False,
        qkv_bias=False,
        max_position_embeddings=max_len,
        bos_token_id=None,
        eos_token_ids=(),
    )


def tiny_weights(
    config: ModelConfig, seed: int, *, head_scale: float = 0.5, layer_scale: float = 1.0
) -> dict[str, torch.Tensor]:
    """Seeded float32 weights, strong enough that the context matters.

    Args:
        config: Shape of the model.
        seed: Seed of the weights.
        head_scale: Standard deviation of the output head; larger makes sharper distributions.
        layer_scale: What the layers add is multiplied by this; smaller lets the newest token
            decide, so that the next one is easier to guess.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 0.5) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * scale

    width, heads = config.hidden_size, config.num_heads * config.head_dim
    kv, inner = config.num_kv_heads * config.head_dim, config.intermediate_size
    weights = {
        "model.embed_tokens.weight": normal(config.vocab_size, width, scale=1.0),
        "model.norm.weight": 1 + normal(width, scale=0.1),
        "lm_head.weight": normal(config.vocab_size, width, scale=head_scale),
    }
    for index in range(config.num_layers):
        attention = f"model.layers.{index}.self_attn"
        mlp = f"model.layers.{index}.mlp"
        weights |= {
            f"model.layers.{index}.input_layernorm.weight": 1 + normal(width, scale=0.1),
            f"model.layers.{index}.post_attention_layernorm.weight": 1 + normal(width, scale=0.1),
            f"{attention}.q_proj.weight": normal(heads, width),
            f"{attention}.k_proj.weight": normal(kv, width),
            f"{attention}.v_proj.weight": normal(kv, width),
            f"{attention}.o_proj.weight": normal(width, heads, scale=0.5 * layer_scale),
            f"{mlp}.gate_proj.weight": normal(inner, width),
            f"{mlp}.up_proj.weight": normal(inner, width),
            f"{mlp}.down_proj.weight": normal(width, inner, scale=0.5 * layer_scale),
        }
    return weights


def tiny_model(
    seed: int,
    *,
    num_layers: int = 3,
    vocab_size: int = 12,
    max_len: int = 256,
    head_scale: float = 0.5,
    layer_scale: float = 1.0,
) -> Transformer:
    """A float32 model on the CPU."""
    config = tiny_config(num_layers=num_layers, vocab_size=vocab_size, max_len=max_len)
    weights = tiny_weights(config, seed, head_scale=head_scale, layer_scale=layer_scale)
    return Transformer.from_weights(config, weights)


def tiny_engine(
    target: Transformer,
    *,
    slots: int = 8,
    max_len: int | None = None,
    eos_token_ids: tuple[int, ...] = (),
) -> Engine:
    """An engine without a drafter."""
    return Engine(
        target,
        eos_token_ids=eos_token_ids,
        max_batch_size=slots,
        max_len=max_len or target.max_len,
    )


def model_drafter(engine: Engine, model: Transformer) -> ModelDrafter:
    """A draft model with a cache of its own, over the target's vocabulary."""
    vocab_size = engine.target.config.vocab_size
    return ModelDrafter(
        "draft",
        model,
        KvCache.allocate(
            model.config, engine.cache.num_slots, engine.max_len, model.dtype, model.device
        ),
        target_vocab_size=vocab_size,
        shared_vocab_size=min(vocab_size, model.config.vocab_size),
        num_weight_bytes=0,
    )


def independent_draft(engine: Engine) -> Drafter:
    """A one-layer model that has nothing to do with the target."""
    vocab_size = engine.target.config.vocab_size
    return model_drafter(
        engine,
        tiny_model(99, num_layers=1, vocab_size=vocab_size, max_len=engine.target.max_len),
    )


def similar_draft(engine: Engine) -> Drafter:
    """The target with a disturbed embedding: it agrees about half of the time."""
    target = engine.target
    noise = torch.randn(target.embedding.shape, generator=torch.Generator().manual_seed(5))
    return model_drafter(
        engine,
        Transformer(
            target.config,
            target.decoder.layers,
            target.embedding + 0.12 * noise,
            target.final_norm,
            target.head,
            target.backend,
            target.max_len,
        ),
    )


def layer_skip(engine: Engine) -> Drafter:
    """All layers of the target but its last."""
    last = engine.target.config.num_layers - 1
    return LayerSkipDrafter("layer-skip", engine.target, engine.cache, last)


def ngram(engine: Engine) -> Drafter:
    """Prompt lookup with n-grams of one to three tokens."""
    return NgramDrafter("ngram", engine.cache.num_slots, min_n=1, max_n=3)


def target_itself(engine: Engine) -> Drafter:
    """The target as its own draft, with a second cache."""
    return model_drafter(engine, engine.target)


DRAFTERS: dict[str, Callable[[Engine], Drafter]] = {
    "draft": similar_draft,
    "layer-skip": layer_skip,
    "ngram": ngram,
    "target": target_itself,
    "eagle3": eagle3,
}
"""Every kind of drafter, built for an engine."""


def request(
    prompt: tuple[int, ...],
    *,
    name: str = "request",
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    max_tokens: int = 32,
    seed: int = 0,
    ignore_eos: bool = False,
    stop_token_ids: frozenset[int] = frozenset(),
) -> Request:
    """A request, greedy unless told otherwise."""
    return Request(
        request_id=name,
        prompt_tokens=prompt,
        params=SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            max_tokens=max_tokens,
            seed=seed,
            ignore_eos=ignore_eos,
            stop_token_ids=stop_token_ids,
        ),
    )


def random_prompt(seed: int, length: int, vocab_size: int = 12) -> tuple[int, ...]:
    """A seeded prompt."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(vocab_size, (length,), generator=generator).tolist())


def answer(
    engine: Engine, prompt: tuple[int, ...], num_tokens: int, *, temperature: float = 0.0
) -> list[int]:
    """Plain decoding of one request, ends ignored: the oracle of the greedy tests."""
    asked = request(prompt, temperature=temperature, max_tokens=num_tokens, ignore_eos=True)
    sequences, _ = engine.generate([asked], batch_size=1)
    return sequences[0].output_tokens
