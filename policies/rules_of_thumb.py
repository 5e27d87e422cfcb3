"""What is commonly advised without measuring: always tried, so that its regret is known.

Off above 32 running requests, and K = 3 for EAGLE-3. (K = 7 for drafters that draft in parallel
joins them with the first such drafter.)
"""

from __future__ import annotations

OFF_ABOVE = 32
"""Running requests above which speculation is said not to pay."""

_K_BY_METHOD = {"eagle3": 3}


def rule_of_thumb(method: str, batch_size: int) -> int | None:
    """K that is advised for a drafter.

    Args:
        method: How it drafts, as `engine.drafters.factory.DrafterSpec` names it.
        batch_size: Scheduled requests in the step.

    Returns:
        0 for off; None where there is no advice.
    """
    return 0 if batch_size > OFF_ABOVE else _K_BY_METHOD.get(method)
