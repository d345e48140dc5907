"""Folders that a specification names, looked at when it is submitted; the worker that opens them looks again."""

import contextlib
import os

from django.conf import settings

from flexmarl.contracts.folder_roots import not_allowed
from flexmarl.contracts.folder_rules import folder_rules, folders_of
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.store.data.model_roots import FolderNotAllowed, FolderUnreadable, ModelRoots


def refused_folders(spec: ExperimentSpec) -> list[Problem]:
    """Return a refusal for each folder outside the allowed roots, or inside this installation's own data."""
    allowed = ModelRoots(tuple(settings.MODEL_ROOTS), (str(settings.HOME),))
    refused = list(folder_rules(spec, allowed.roots))
    named = {problem.pointer for problem in refused}
    for where, path in folders_of(spec):
        if where not in named and _closed(allowed, path):
            refused.append(not_allowed(where, allowed.roots))
    return refused


def unseen_folders(spec: ExperimentSpec) -> list[Problem]:
    """Return a warning for each folder that this host cannot open: nodes may well be able to."""
    allowed = ModelRoots(tuple(settings.MODEL_ROOTS), (str(settings.HOME),))
    found = []
    for where, path in folders_of(spec):
        try:
            os.close(allowed.open(path))
        except FolderUnreadable as unreadable:
            detail = f"On the host of the web process {unreadable}."
            hint = "Make sure that every node can read it; the run fails at its start otherwise."
            found.append(Problem(pointer=where, code="folder_not_seen", detail=detail, hint=hint))
    return found


def _closed(allowed: ModelRoots, path: str) -> bool:
    with contextlib.suppress(FolderUnreadable):
        try:
            os.close(allowed.open(path))
        except FolderNotAllowed:
            return True
    return False
