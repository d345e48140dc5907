"""What is learned of members that another installation said (`sampling.sharing.learn_from`).

Nobody knows how probable their tokens were to whoever said them, so they count with the ratio 1. A success of theirs is
imitated, whose gain ends where the policy says it itself. A failure is pushed down, however improbable it is to the
policy already, and no ratio ever bounds that. `successes` leaves the latter out.
"""

from collections.abc import Sequence
from typing import Literal

from flexmarl.algorithms.advantages import Advantages
from flexmarl.contracts.wire import EpisodeOutcome


def learned(
    episodes: Sequence[EpisodeOutcome], advantages: Advantages, learn_from: Literal["all", "successes"]
) -> Advantages:
    """Return advantages that are 0 for the turns of others that did worse than their group, with `successes`."""
    if learn_from == "all":
        return advantages
    return [
        [max(advantage, 0.0) for advantage in own] if episode.shared else own
        for episode, own in zip(episodes, advantages, strict=True)
    ]
