"""Whole layers in one call against one product after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.checkpoint.config import ModelConfig
from engine.kernels.attention import prepare_attention
from engine.kernels.backend import Backend
from engine.kernels.decoder import Decoder, DecoderLayer
from engine.kernels.linear import RmsNorm, make_linear
from engine.kernels.rotary import RotaryTables
from engine.kv_cache import KvCache
from engine.layout import make_layout

pytestmark = pytest.mark.usefixtures("native")

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    vocab_size=8,
    hidden_size=40,
    intermediate_size=56,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    qkv_bias=False,
    max_position_embeddings=64,
    bos_token_id=None,
    eos_token_ids=(),
)


class Run:
    """Layers with seeded weights over seeded inputs and an own cache."""

    def __init__(self, backend: Backend) -> None:
        """Build everything anew."""
        self._generator = torch.Generator().manual_seed(1)
        size, inner = CONFIG.hidden_size, CONFIG.intermediate_size
        heads = CONFIG.num_heads * CONFIG.head_dim
        kv = CONFIG.num_kv_heads * CONFIG.head_dim
        norm = RmsNorm(1 + self.numbers(size), 1e-5)
        self.decoder = Decoder(
            [
                DecoderLayer(
                    qkv=make_linear(
                        self.numbers(heads + 2 * kv, size),
                        self.numbers(heads + 2 * kv),
                        backend,
                        norm=norm,
                    ),
                    attention_out=make_linear(self.numbers(size, heads), None, backend),
                    gate_up=make_linear(
                        self.numbers(2 * inner, size), None, backend, norm=norm, is_gated=True
                    ),
                    down=make_linear(self.numbers(size, inner), None, backend),
                )
                for _ in range(CONFIG.num_layers)
            ]
        )
        self.hidden = self.numbers(6, size)
        self.cache = KvCache.allocate(CONFIG, 3, 64, torch.float32, CPU)
        for part in (self.cache.keys, self.cache.values):
            part.copy_(self.numbers(*part.shape))
        layout = make_layout([2, 0, 1], [40, 0, 7], [3, 1, 2], device=CPU)
        tables = RotaryTables.build(CONFIG, 64, torch.float32, CPU)
        self.attend = prepare_attention(CONFIG, layout, tables, self.cache, backend)

    def numbers(self, *shape: int) -> Tensor:
        """Normal numbers that keep a stream of activations of order one."""
        return torch.randn(shape, generator=self._generator) / shape[-1] ** 0.5

    def layers(self, first: int, end: int) -> Tensor:
        """Run some layers on the inputs."""
        given = self.hidden.clone()
        out = self.decoder(self.hidden, self.attend, first, end)
        assert torch.equal(self.hidden, given), "the input was modified"
        return out

    def one_by_one(self) -> Tensor:
        """All layers, a call for every product."""
        hidden = self.hidden
        for index, layer in enumerate(self.decoder.layers):
            hidden = layer.attention_out(self.attend(layer.qkv(hidden), index), hidden)
            hidden = layer.down(layer.gate_up(hidden), hidden)
        return hidden


def test_all_at_once_is_one_by_one_to_the_bit() -> None:
    """The same kernels in the same order: results and cache."""
    together, apart = Run("native"), Run("native")

    assert torch.equal(together.layers(0, 3), apart.one_by_one())
    assert torch.equal(together.cache.keys, apart.cache.keys)
    assert torch.equal(together.cache.values, apart.cache.values)


def test_the_reference_agrees() -> None:
    """Every part in torch."""
    native, reference = Run("native"), Run("torch")

    torch.testing.assert_close(native.layers(0, 3), reference.layers(0, 3), rtol=0, atol=2e-5)
    torch.testing.assert_close(native.cache.keys, reference.cache.keys, rtol=0, atol=2e-5)
    torch.testing.assert_close(native.cache.values, reference.cache.values, rtol=0, atol=2e-5)


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_layers_can_be_run_in_parts(backend: Backend) -> None:
    """Between them a drafter reads the stream; a part may be empty."""
    whole, parts = Run(backend), Run(backend)

    expected = whole.layers(0, 3)

    for first, end in ((0, 0), (0, 1), (1, 3), (3, 3)):
        parts.hidden = parts.layers(first, end)
    assert torch.equal(parts.hidden, expected)


def test_inputs_of_another_shape_or_type_are_refused() -> None:
    """Pointers tell nothing about what they point to."""
    run = Run("native")

    for wrong in (run.hidden[:5], run.hidden[:, :39], run.hidden.double()):
        run.hidden = wrong
        with pytest.raises(ValueError, match="hidden is"):
            run.layers(0, 3)
