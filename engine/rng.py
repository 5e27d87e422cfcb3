"""Counter-based randomness.

A uniform depends only on (seed, round, position, purpose), never on batch mates, preemption or the
order of calls. The round is part of the key: a position drafted again after a rejection must get
fresh noise, or rules that look at later tokens become biased.
"""

from __future__ import annotations

from enum import IntEnum

_MASK = (1 << 64) - 1

Key = tuple[int, int, int]
"""Seed, round and position: with a purpose, all that a uniform depends on."""


class Purpose(IntEnum):
    """The independent uses of randomness within a round."""

    DRAFT = 1
    ACCEPT = 2
    EMIT = 3


def uniform(seed: int, round_index: int, position: int, purpose: Purpose) -> float:
    """One number in [0, 1), a multiple of 2^-53.

    Args:
        seed: The request's seed; any integer, reduced modulo 2^64.
        round_index: Decode round of the request, from 1. Prefill shares the first one's number,
            but samples a position that no round does.
        position: Position of the token in the sequence.
        purpose: What the number decides.

    Source: finaliser of SplitMix64 (Steele, Lea, Flood 2014), chained over the key's parts.
    """
    state = _mix(seed & _MASK)
    for part in (round_index, position, purpose):
        state = _mix((state ^ part) & _MASK)
    return (state >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
