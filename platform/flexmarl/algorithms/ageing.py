"""When an episode is too old to be worth another turn (ROLLART, arXiv 2512.22560: the bound is checked at every turn).

The sweep before a cut removes rows whose first token is more than their policy's bound older than the weights that they
would train. No step trains weights older than those that engines have, so rows that exceed the bound against these are
certain to be removed. Pure; asked by rollout workers and by their model in the simulator.
"""

from collections.abc import Mapping


def too_old(oldest: Mapping[str, int], newest: Mapping[str, int], bounds: Mapping[str, int]) -> str:
    """Return why nothing of an episode can be trained any more, in words; empty while anything may be.

    `oldest`: policy -> version of the oldest token among rows that are trained together. `newest`: policy -> newest
    version that engines have. `bounds`: policy -> largest own lag, of every trained policy; empty: nothing is given up.
    A policy without a row so far may still say something new.
    """
    worst = ""
    for policy, bound in bounds.items():
        first, served = oldest.get(policy), newest.get(policy)
        if first is None or served is None or served - first <= bound:
            return ""
        worst = worst or f"{policy} v{first} said its first turn, v{served} is served: the bound is {bound}"
    return worst


def older(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return the older version of each policy of either."""
    return {name: min(one.get(name, version), version) for name, version in (*one.items(), *other.items())}
