"""How each contestant is started: its program, its description and its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.modes import Launch, Mode
from tests.benchmarks.peers import Peer

_KV_GIB = "1"
_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
# What would decide about threads behind our back.
_UNSET = ("OMP_", "GOMP_", "KMP_", "MKL_", "VLLM_", "LD_PRELOAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestants:
    """Starts processes; all share the model.

    Attributes:
        model: Folder of the target.
        draft: Folder of the draft that ours loads.
        whole_draft: The same draft as a whole model, for transformers.
        vllm_python: Interpreter with vLLM.
        threads: Threads to compute with.
        slots: Largest batch.
        plain_len: Tokens of the longest request without drafts,
        max_len: and of the longest of all.
        scratch: Existing folder for logs.
    """

    model: Path
    draft: Path
    whole_draft: Path
    vllm_python: Path
    threads: int
    slots: int
    plain_len: int
    max_len: int
    scratch: Path

    def ours(self, mode: Mode) -> Peer:
        """Our engine."""
        return Peer(
            "ours",
            "tests.benchmarks.ours_speed",
            {
                "model": str(self.model),
                "draft": str(self.draft),
                "dtype": mode.dtype,
                "max_len": self.max_len,
                "slots": self.slots,
            },
            log=self.scratch / "ours.log",
            environment=self._environment(),
        )

    def transformers(self, mode: Mode) -> Peer:
        """Transformers."""
        return Peer(
            f"transformers ({mode.dtype})",
            "tests.benchmarks.transformers_speed",
            {
                "model": str(self.model),
                "draft": str(self.whole_draft),
                "dtype": mode.dtype,
            },
            log=self.scratch / f"transformers-{mode.dtype}.log",
            environment=self._environment(),
        )

    def vllm(self, mode: Mode) -> Peer:
        """VLLM, launched as the mode says."""
        name = mode.describe_vllm()
        return Peer(
            f"vLLM ({name})",
            "tests.benchmarks.vllm_speed",
            {
                "model": str(self.model),
                "dtype": mode.dtype,
                "compiled": mode.compiled,
                "max_len": self.plain_len,
                "slots": self.slots,
            },
            log=self.scratch / f"vllm-{name.replace(', ', '-').replace(' ', '-')}.log",
            environment=self._vllm_environment(mode),
            python=self.vllm_python,
        )

    def vllm_launches(self) -> tuple[Launch, ...]:
        """The ways to launch vLLM that exist here."""
        usual: tuple[Launch, ...] = ("in-process", "engine process")
        return (*usual, "in-process, Intel OpenMP") if self._intel_openmp.is_file() else usual

    @property
    def _intel_openmp(self) -> Path:
        """Comes with vLLM's requirements; its manual recommends to preload it."""
        return self.vllm_python.parent.parent / "lib" / "libiomp5.so"

    def _environment(self) -> dict[str, str]:
        return {**_inherited(), **_OFFLINE, "OMP_NUM_THREADS": str(self.threads)}

    def _vllm_environment(self, mode: Mode) -> Mapping[str, str]:
        common = {**_inherited(), **_OFFLINE, "VLLM_CPU_KVCACHE_SPACE": _KV_GIB}
        if mode.launch == "engine process":  # The default: it decides about threads itself.
            return common
        in_process = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(self.threads),
        }
        if mode.launch == "in-process, Intel OpenMP":
            in_process["LD_PRELOAD"] = str(self._intel_openmp)
        return {**common, **in_process}


def _inherited() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(_UNSET)}
