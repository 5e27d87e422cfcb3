"""Counts of what speculation did. Counters are stored; ratios are derived and never averaged."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise, zip_longest


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecDecodeCounters:
    """Counts over decode rounds; a round is one verify pass of one request.

    A round emits its accepted draft tokens and exactly one token more, recovered or bonus,
    unless an end-of-sequence or a length limit cuts it. Only `num_emitted_tokens` counts that
    extra token; the accepted counts never do.

    Attributes:
        num_drafts: Rounds that drafted at least one token.
        num_rounds: All rounds, those without a draft included.
        num_draft_tokens: Tokens proposed by the drafter.
        num_accepted_tokens: Of those, the accepted ones.
        num_emitted_tokens: Tokens given to the requests by these rounds.
        num_accepted_tokens_per_pos: Rounds that accepted the draft token at each position,
            first position first.

    Raises:
        ValueError: The counts contradict one another.
    """

    num_drafts: int = 0
    num_rounds: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_emitted_tokens: int = 0
    num_accepted_tokens_per_pos: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for count in fields(self)[:-1]:
            if getattr(self, count.name) < 0:
                raise ValueError(f"{count.name} = {getattr(self, count.name)}: must be 0 or more")
        most_emitted = self.num_accepted_tokens + self.num_rounds
        for smaller, larger, limit in (
            ("num_drafts", "num_rounds", self.num_rounds),
            ("num_drafts", "num_draft_tokens", self.num_draft_tokens),
            ("num_accepted_tokens", "num_draft_tokens", self.num_draft_tokens),
            ("num_emitted_tokens", "num_accepted_tokens + num_rounds", most_emitted),
        ):
            if getattr(self, smaller) > limit:
                raise ValueError(
                    f"{smaller} = {getattr(self, smaller)}: must not exceed {larger} = {limit}"
                )
        if self.num_draft_tokens and not self.num_drafts:
            raise ValueError(f"num_draft_tokens = {self.num_draft_tokens} without any draft")
        self._check_positions()

    def _check_positions(self) -> None:
        positions = self.num_accepted_tokens_per_pos
        if sum(positions) != self.num_accepted_tokens:
            raise ValueError(
                f"num_accepted_tokens_per_pos = {positions}: must add up to "
                f"num_accepted_tokens = {self.num_accepted_tokens}"
            )
        # A position is accepted only after the one before it, and the first only in a draft.
        if any(later > earlier for earlier, later in pairwise((self.num_drafts, *positions, 0))):
            raise ValueError(
                f"num_accepted_tokens_per_pos = {positions}: must fall from at most "
                f"num_drafts = {self.num_drafts} and stay at 0 or more"
            )

    def add_round(
        self, *, num_draft_tokens: int, num_accepted_tokens: int, num_emitted_tokens: int
    ) -> SpecDecodeCounters:
        """These counts and one round more.

        Raises:
            ValueError: The round accepted more than it drafted, or emitted more than the
                accepted tokens and one.
        """
        positions = tuple(int(i < num_accepted_tokens) for i in range(num_draft_tokens))
        return self.merge(
            SpecDecodeCounters(
                num_drafts=int(num_draft_tokens > 0),
                num_rounds=1,
                num_draft_tokens=num_draft_tokens,
                num_accepted_tokens=num_accepted_tokens,
                num_emitted_tokens=num_emitted_tokens,
                num_accepted_tokens_per_pos=positions,
            )
        )

    def merge(self, other: SpecDecodeCounters) -> SpecDecodeCounters:
        """Sums of both, position by position."""
        return SpecDecodeCounters(
            num_drafts=self.num_drafts + other.num_drafts,
            num_rounds=self.num_rounds + other.num_rounds,
            num_draft_tokens=self.num_draft_tokens + other.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens + other.num_accepted_tokens,
            num_emitted_tokens=self.num_emitted_tokens + other.num_emitted_tokens,
            num_accepted_tokens_per_pos=tuple(
                mine + theirs
                for mine, theirs in zip_longest(
                    self.num_accepted_tokens_per_pos,
                    other.num_accepted_tokens_per_pos,
                    fillvalue=0,
                )
            ),
        )

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens, without the extra token; None when nothing was drafted.

        Draft tokens after a rejection count as drafted.
        """
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def acceptance_rate_per_pos(self) -> tuple[float, ...]:
        """Share of drafts whose token at each position was accepted; empty without drafts.

        Unconditional: a draft rejected earlier counts against every later position.
        """
        if not self.num_drafts:
            return ()
        return tuple(count / self.num_drafts for count in self.num_accepted_tokens_per_pos)

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / drafts: the extra token (bonus or recovered) is included.

        Rounds that drafted nothing and cuts at the end of a request do not enter. None when
        nothing was drafted.
        """
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def tokens_per_round(self) -> float | None:
        """Emitted tokens / all rounds: the extra token is included, cuts are taken off.

        This is the block efficiency that a rate follows from. None before the first round.
        """
        return self.num_emitted_tokens / self.num_rounds if self.num_rounds else None
