"""What a run asks of a policy's model at once: of an engine replies in generation, of a trainer tokens of a pass.

Lengths of prompts and replies are those that runs measured; how many there are at once follows from the batch.
"""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from flexmarl.contracts.base import Record
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.simulator.prediction.profile import Profile

PASS_TOKENS = 2048
"""Most tokens of a pass on a CPU."""
MOST_ROWS = 256
"""Most replies of a version that an engine generates at once."""
TOGETHER = (0.5, 1.0, 2.0)
"""Episodes that wait for the same policy at once, over those that are played: two versions may have all of them."""
LONGEST = (1.0, 1.2, 1.5)
"""The longest reply with its prompt over the mean."""


class LoadRange(NamedTuple):
    low: float
    likely: float
    high: float


class MemoryLoad(Record):
    rows: LoadRange
    """Replies in generation at once on one engine, of all versions."""
    positions: LoadRange
    """Tokens of the longest prompt with its reply."""
    tokens: LoadRange
    """Of a forward and backward pass."""

    @classmethod
    def exactly(cls, rows: float, positions: float, tokens: float) -> "MemoryLoad":
        one, two, three = (LoadRange(each, each, each) for each in (rows, positions, tokens))
        return cls(rows=one, positions=two, tokens=three)


UNKNOWN_PROMPT = LoadRange(32, 96, 512)
"""Tokens of a prompt that nobody measured."""
LEAST = MemoryLoad.exactly(rows=1, positions=64, tokens=64)
"""What any run asks for."""


def asked_of(spec: ExperimentSpec, profile: Profile) -> dict[str, MemoryLoad]:
    """Return what is asked of each policy."""
    return {policy: _asked(spec, spec.roles_of(policy), profile) for policy in spec.policies}


def _asked(spec: ExperimentSpec, roles: Sequence[str], profile: Profile) -> MemoryLoad:
    if not roles:
        return LEAST
    batch = spec.batch
    playing = batch.rollout_groups * batch.episodes_per_task / max(1, spec.resources.engines)
    together = [min(MOST_ROWS, max(1.0, share * playing)) for share in TOGETHER]
    prompts = _ends(profile, "role.prompt", roles) or UNKNOWN_PROMPT
    longest = max(map(spec.longest_reply, roles))
    replies = _ends(profile, "role.reply", roles) or LoadRange(1, longest, longest)
    means = [prompt + reply for prompt, reply in zip(prompts, replies, strict=True)]
    reach = [max(mean, prompt + longest) for mean, prompt in zip(means, prompts, strict=True)]
    rows = batch.micro_batch_groups * batch.episodes_per_task * len(roles)
    return MemoryLoad(
        rows=LoadRange(*together),
        positions=LoadRange(*(more * one for more, one in zip(LONGEST, reach, strict=True))),
        tokens=_pass([rows * mean for mean in means]),
    )


def _ends(profile: Profile, name: str, roles: Sequence[str]) -> LoadRange | None:
    """Return the largest figure of some roles, None where nobody measured it."""
    found = [figure for role in roles if (figure := profile.figures.get(f"{name} {role}"))]
    if len(found) < len(roles):
        return None
    return LoadRange(*(max(getattr(figure, end) for figure in found) for end in LoadRange._fields))


def _pass(totals: Sequence[float]) -> LoadRange:
    """Return the tokens of a pass of micro-batches, each shared out evenly; one of other lengths may fill a pass."""
    low, likely, high = (total / max(1, ceil(total / PASS_TOKENS)) for total in totals)
    return LoadRange(min(low, likely), likely, max(low, likely, high, min(PASS_TOKENS, totals[-1])))
