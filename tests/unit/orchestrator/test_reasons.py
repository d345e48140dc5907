"""Every command is decided with a reason: its own, or the one that is given where it is issued."""

import ast
from pathlib import Path
from typing import get_args

from flexmarl import orchestrator
from flexmarl.contracts.commands import Command, VacateTrainer
from flexmarl.orchestrator.context import Context
from flexmarl.orchestrator.reasons import _REASONS, reason_of
from flexmarl.orchestrator.state.tree import Failure
from tests.unit.orchestrator.fake_cluster import make_spec, started


def issued_with_a_reason() -> set[str]:
    """Name the commands that a part of the core decides with words of its own."""
    [folder] = orchestrator.__path__
    calls = [
        node
        for path in Path(folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and any(keyword.arg == "why" for keyword in node.keywords)
    ]
    made = [argument for call in calls for argument in call.args if isinstance(argument, ast.Call)]
    return {one.func.id for one in made if isinstance(one.func, ast.Name)}


def test_every_kind_of_command_has_a_reason() -> None:
    kinds = set(get_args(get_args(Command)[0]))
    assert set(_REASONS) <= kinds
    assert {kind.__name__ for kind in kinds - set(_REASONS)} <= issued_with_a_reason()


def test_a_reason_that_is_given_is_told_and_says_how_often_the_work_failed() -> None:
    core = started(make_spec()).core
    ctx = Context(core.plan, core.state, 0.0)
    order = VacateTrainer(lease_id=1)
    ctx.issue("vacate:1", order, lease_id=1, why="an engine wakes")
    assert ctx.commands[-1].reason == "an engine wakes"
    core.state.failures["vacate:1"] = Failure(2, 9.0)
    assert reason_of(core.state, order, "vacate:1", "an engine wakes").startswith(
        "an engine wakes; tried again after 2"
    )
