"""Decisions of the orchestrator that are no commands: what it ruled on groups, rows, steps and cohorts.

A ruling is written with the event it was made on, like a command; together they are a run's decisions. `kind` and
`cause` are for programs, `reason` is a sentence for people.
"""

from enum import StrEnum

import msgspec


class RulingKind(StrEnum):
    COHORT_SETTLED = "cohort_settled"
    """Every group of a cohort is settled: its barrier is down."""
    GROUP_REFUSED = "group_refused"
    """The filter keeps a group's rows out of training; they stay recorded."""
    GROUP_BRANCHED = "group_branched"
    """Members of a group continued others; the reason says after which turns, and why there."""
    GROUP_RESCUED = "group_rescued"
    """A group of which nobody solved the task is compared with an earlier success of it, which is trained again."""
    GROUP_SIZED = "group_sized"
    """A group has another number of members than the specification gives each."""
    GROUP_DROPPED = "group_dropped"
    """Too few members of a group finished; its rows stay recorded."""
    GROUP_SURPLUS = "group_surplus"
    """A group settled after it was cancelled as surplus; its rows stay recorded."""
    ROWS_DROPPED = "rows_dropped"
    """Rows leave training before a micro-batch is cut; `cause` says why."""
    GROUP_LIMITED = "group_limited"
    """Episodes of a group end after fewer turns than the environment lets them have; the reason says how many."""
    NULL_STEP = "null_step"
    """A policy has nothing to train on in a step; its version stays."""
    ENGINE_ASSIGNED = "engine_assigned"
    """A free place on an engine goes to a policy."""
    ENGINE_MOVED = "engine_moved"
    """A place on an engine goes from one policy to another; `cause` says why, the reason the load it was seen in."""
    ENGINE_EMPTIED = "engine_emptied"
    """What an engine has left of a version goes on at another one; `cause` says what it is free for."""
    DEVICES_BOUND = "devices_bound"
    """A policy gets trainer devices; `cause` says why these, and why now."""
    DEVICES_TAKEN = "devices_taken"
    """A policy gives its trainer devices up; `cause` says why."""
    DEVICES_TURNED = "devices_turned"
    """Devices that engines and trainers share go from the ones to the others; `cause` says to whom."""
    FLEET_SIZED = "fleet_sized"
    """An elastic fleet is to have more or fewer engines; `cause` says which, the reason the rates it was seen in."""
    STEP_CARRIED = "step_carried"
    """A policy has too few rows for a step; its gradient goes on into the next cohort."""


class Ruling(msgspec.Struct, frozen=True, gc=False):
    """A decision that is no command. `rows` leave training by it; `cause` names why, for programs."""

    kind: RulingKind
    reason: str
    policy: str = ""
    cohort: int = -1
    target: str = ""
    rows: int = 0
    cause: str = ""
