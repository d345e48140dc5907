"""Runs as the control plane keeps them, and their live state, which the store keeps and Django only reads."""

from flexmarl.controlplane.runs.models.check import ConsistencyCheck
from flexmarl.controlplane.runs.models.deletion import RunDeletion
from flexmarl.controlplane.runs.models.history import Attempt, VerbOutcome
from flexmarl.controlplane.runs.models.label import TrajectoryLabel
from flexmarl.controlplane.runs.models.program_session import ProgramSessionRow
from flexmarl.controlplane.runs.models.row_set import RowSet
from flexmarl.controlplane.runs.models.run import Operation, Run
from flexmarl.controlplane.runs.models.saved_view import SavedView
from flexmarl.controlplane.runs.models.state import (
    Checkpoint,
    Handled,
    LoggedEvent,
    Note,
    PolicyVersion,
    RunStateRow,
)

__all__ = [
    "Attempt",
    "Checkpoint",
    "ConsistencyCheck",
    "Handled",
    "LoggedEvent",
    "Note",
    "Operation",
    "PolicyVersion",
    "ProgramSessionRow",
    "RowSet",
    "Run",
    "RunDeletion",
    "RunStateRow",
    "SavedView",
    "TrajectoryLabel",
    "VerbOutcome",
]
