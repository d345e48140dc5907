"""Kinds of plug-ins that specifications name."""

from typing import Any

from flexmarl.contracts.plugins import Kind
from flexmarl.contracts.specification.advantages import ADVANTAGE
from flexmarl.contracts.specification.arrangers import ARRANGER
from flexmarl.contracts.specification.branch_controllers import BRANCH_CONTROLLER
from flexmarl.contracts.specification.corrections import CORRECTION
from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.specification.graphs import GRAPH
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.member_counts import MEMBER_COUNT
from flexmarl.contracts.specification.movers import MOVER
from flexmarl.contracts.specification.redundancies import REDUNDANCY
from flexmarl.contracts.specification.reward import REWARD
from flexmarl.contracts.specification.routers import ROUTER
from flexmarl.contracts.specification.scores import SCORE
from flexmarl.contracts.specification.shaping import SHAPING
from flexmarl.contracts.specification.task_choice import GROUP_FILTER, TASK_SAMPLER

KINDS: tuple[Kind[Any], ...] = (
    ENVIRONMENT,
    GRAPH,
    REWARD,
    LOSS,
    ADVANTAGE,
    CORRECTION,
    SHAPING,
    GROUP_FILTER,
    TASK_SAMPLER,
    MEMBER_COUNT,
    ARRANGER,
    BRANCH_CONTROLLER,
    ROUTER,
    MOVER,
    REDUNDANCY,
)
"""Those of which every specification names one, in the order in which pages list them."""
ALL_KINDS: tuple[Kind[Any], ...] = (*KINDS, SCORE)
"""Also those that only the settings of another plug-in name."""
