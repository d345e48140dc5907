"""Which settings are read under which choices: the one list that refusals and forms go by.

Invariant (tested): every pointer here names a field of the specification, and with its default value a setting that is
not read breaks no rule. `unread` refuses a written value of `REFUSED` that nobody would read; the form of a run shows
a setting only while it is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.shaping import SHAPING


@dataclass(frozen=True, slots=True)
class Choice:
    """The value at a pointer is one of these; negated: none of these. `*` stands for the policy in question."""

    pointer: str
    values: tuple[str | float | bool | None, ...]
    negated: bool = False

    def holds(self, value: object) -> bool:
        return (value in self.values) != self.negated


Ways = tuple[tuple[Choice, ...], ...]
"""A setting is read in any of these ways: in each, all of its choices hold."""


def _one(name: str, *values: str | float | bool) -> Choice:
    return Choice(name, values)


def _none(name: str, *values: str | float | bool) -> Choice:
    return Choice(name, values, negated=True)


_PAIRED_LOSSES = tuple(name for name, options in LOSS.variants().items() if options.paired)
_OF_TURNS = tuple(name for name, options in SHAPING.variants().items() if options.of_turns)
_DISCOUNTING = tuple(name for name, options in ADVANTAGE.variants().items() if options.discounts_always)
PER_TURN = _one("/algorithm/advantage/per_turn", True)
_PAIRED = _one("/algorithm/loss/type", *_PAIRED_LOSSES)
_NOT_PAIRED = _none("/algorithm/loss/type", *_PAIRED_LOSSES)
_NOT_GAE = _none("/algorithm/advantage/type", "gae")
_OWN_TURNS = _none("/algorithm/shaping/type", *_OF_TURNS)
_BRANCHES = ((_none("/sampling/branch_controller", "none"),),)
_REPACKS = ((_one("/mechanisms/mover/type", "repack"),),)
_GANG = (
    _one("/policies/*/tuning/type", "full"),
    _one("/mechanisms/ordered", False),
    _NOT_GAE,
    _NOT_PAIRED,
)  # ranks share out single rows of whole weights, and how many there are changes bits
_ON_DEMAND = _one("/mechanisms/allocation/type", "agent_centric", "colocated")

READ: Mapping[str, Ways] = {
    "/algorithm/group_key": ((_NOT_PAIRED, _NOT_GAE),),
    "/algorithm/correction/type": ((_NOT_PAIRED,),),
    "/algorithm/kl/coefficient": ((_NOT_PAIRED,),),
    "/algorithm/kl/estimator": ((_NOT_PAIRED, _none("/algorithm/kl/coefficient", 0)),),
    "/algorithm/kl/reference/type": ((_NOT_PAIRED, _none("/algorithm/kl/coefficient", 0)), (_PAIRED,)),
    "/algorithm/entropy/end_share": ((_none("/algorithm/entropy/start", 0),),),
    "/algorithm/entropy/decay_steps": ((_none("/algorithm/entropy/start", 0),),),
    "/algorithm/loss/norm_tokens": ((_one("/algorithm/loss/aggregation", "constant_norm"),),),
    "/algorithm/advantage/per_turn": ((_NOT_PAIRED,),),
    "/algorithm/advantage/turn_rewards": ((_OWN_TURNS, PER_TURN),),
    "/algorithm/advantage/gamma": (
        (_OWN_TURNS, PER_TURN),
        (_OWN_TURNS, _one("/algorithm/advantage/type", *_DISCOUNTING)),
    ),
    "/sampling/branch_score": _BRANCHES,
    "/sampling/branch_carry": _BRANCHES,
    "/sampling/branch_joint": _BRANCHES,
    "/batch/failed_score": ((_one("/batch/incomplete_group", "score"),),),
    "/batch/mini_batches": ((_one("/mechanisms/trainer_protocol", "mini_batch"),),),
    "/batch/min_rows": ((_none("/mechanisms/trainer_protocol", "mini_batch"),),),
    "/mechanisms/lag_policy/in_flight": ((_none("/mechanisms/lag_policy/bound", 0),),),
    "/mechanisms/lag_policy/at_cut": ((_none("/mechanisms/lag_policy/bound", 0),),),
    "/mechanisms/redundancy/extra": ((_none("/mechanisms/redundancy/type", "none"),),),
    "/mechanisms/redundancy/share": ((_one("/mechanisms/redundancy/type", "extra_groups"),),),
    "/mechanisms/redundancy/extra_members": ((_one("/mechanisms/redundancy/type", "extra_groups"),),),
    "/mechanisms/redundancy/surplus": ((_one("/mechanisms/redundancy/type", "extra_groups"),),),
    "/mechanisms/mover/delta": ((_one("/mechanisms/mover/type", "demand"),),),
    "/mechanisms/mover/below": _REPACKS,
    "/mechanisms/mover/every_s": _REPACKS,
    "/mechanisms/mover/cache_tokens": _REPACKS,
    "/mechanisms/durability/every": ((_one("/mechanisms/durability/type", "every_k"),),),
    "/mechanisms/allocation/homes": ((_one("/mechanisms/allocation/type", "static", "colocated"),),),
    "/mechanisms/allocation/own_devices": ((_one("/mechanisms/allocation/type", "colocated"),),),
    "/mechanisms/allocation/keep_warm_s": ((_ON_DEMAND,),),
    "/mechanisms/allocation/patience_s": ((_ON_DEMAND,),),
    "/policies/*/devices/least": (_GANG,),
    "/policies/*/devices/most": ((*_GANG, _ON_DEMAND),),
}
"""Setting -> when it is read. What is not named is read always, or wherever its object's type has it."""

REFUSED = (
    "/algorithm/loss/norm_tokens",
    "/algorithm/advantage/turn_rewards",
    "/algorithm/advantage/gamma",
    "/sampling/branch_score",
    "/sampling/branch_carry",
    "/sampling/branch_joint",
    "/mechanisms/redundancy/extra_members",
)
"""Settings whose written value would be believed in, so that it is refused where nobody reads it."""


def value_of(spec: ExperimentSpec, pointer: str) -> Any:
    """Return the value at a pointer of a specification; None when the path ends early."""
    here: Any = spec
    for part in pointer.strip("/").split("/"):
        here = here.get(part) if isinstance(here, Mapping) else getattr(here, part, None)
    return here


def missing(spec: ExperimentSpec, pointer: str) -> Choice | None:
    """Return the choice for want of which a setting is not read, of the way that lacks least; None: it is read."""
    lacks = [[choice for choice in way if not choice.holds(value_of(spec, choice.pointer))] for way in READ[pointer]]
    least = min(lacks, key=len)
    return least[0] if least else None


def unread(spec: ExperimentSpec) -> Iterator[Problem]:
    """Refuse a setting that the chosen options do not read. One that lacks turns alone has a refusal of its own."""
    for pointer in REFUSED:
        lacked = missing(spec, pointer)
        if lacked is None or lacked == PER_TURN:
            continue
        above, _, name = pointer.rpartition("/")
        record = value_of(spec, above)
        if name not in type(record).model_fields:
            continue
        value, default = getattr(record, name), default_of(record, name)
        if value != default:
            chosen = value_of(spec, lacked.pointer)
            kind = lacked.pointer.rpartition("/")[2]
            yield Problem(
                pointer=pointer,
                code="not_read",
                detail=f"{name} is {_said(value)}, and {chosen if kind == 'type' else f'{kind} {chosen}'} "
                "does not use it.",
                hint="Remove it." if default is None else f"Remove it, or set {_said(default)}.",
            )


def default_of(record: BaseModel, name: str) -> Any:
    """Return what a field of a record is without a word of people."""
    return type(record).model_fields[name].get_default(call_default_factory=True)


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
