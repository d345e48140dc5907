"""Agent programs that are commands: what is run for a session, in which workspace, and how its reward is found.

Words in braces stand for what a session is told; workers fill them in where a value is one argument, never in a line
that a shell reads. Paths are relative and lead nowhere above the folder that they are in.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from flexmarl.contracts.base import Strict
from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.package import NAMED, PinnedBuild
from flexmarl.contracts.specification.scores import (
    ANSWER_HERE,
    ExactOptions,
    JudgeOptions,
    RegexOptions,
    ScoreOptions,
    ScoreSpec,
    distinct,
)

if TYPE_CHECKING:
    from flexmarl.contracts.specification.program import ProgramEnvironment

TOLD = ("task", "number", "purpose", "session", "workspace", "seat", "prompt", "base_url", "key")
"""Words that stand in braces for what a session is told."""
OWN_VARIABLES = ("OPENAI_", "ANTHROPIC_", "FLEXMARL_")
"""Variables that begin so are the platform's."""
OWN_NAMES = ("HOME", "TMPDIR", "PATH")
ROW_FREE = frozenset({"regex", "json_schema", "length", "format"})
"""Types of scores that say something of a text without the answer of a row."""
_WORDS = re.compile(r"(?<!\$)\{(" + "|".join((*TOLD, "question")) + r")\}")
MOST_ARGUMENTS = 256
EVALUATOR = "/environment/runner/evaluator"


def beneath(path: str) -> str:
    """Return a path that stays within its folder. Raises ValueError."""
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or "\0" in path or (path and not parts):
        raise ValueError(f"{path!r} leads out of its folder; write a relative path without .., such as src/main.py")
    return path


def words_in(text: str) -> list[str]:
    """Return the words in braces that a text has."""
    return [str(word) for word in _WORDS.findall(text)]


RelativePath = Annotated[str, Field(max_length=500), AfterValidator(beneath)]
_Argument = Annotated[str, StringConstraints(max_length=32_768, pattern=r"^[^\x00]*$")]
_Column = Annotated[str, StringConstraints(min_length=1, max_length=200)]
CommandWords = Annotated[tuple[_Argument, ...], Field(max_length=MOST_ARGUMENTS)]
CommandLine = CommandWords | _Argument
"""A program with its arguments, in which words in braces are filled in; or a line that `sh` reads as it stands."""


class WorkspaceFiles(Strict):
    """Files that are laid into a workspace: a folder or an archive of the package first, then columns of the row."""

    folder: RelativePath = Field(default="", examples=["my_tasks/{number}"])
    """Folder or archive (.tar.gz, .tar, .zip) of the package, by its path beside its modules; {task}, {number} and
    {purpose} stand for those of the session."""
    columns: Annotated[
        dict[RelativePath, Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=64)
    ] = {}
    """Path in the workspace -> column of the dataset's row that is written there."""


class RewardFile(Strict):
    """The command writes what it earned as JSON to `reward.json` in its workspace."""

    type: Literal["reward_file"] = "reward_file"


class EvaluateCommand(Strict):
    """A command looks at the workspace once the agent has ended, in a sandbox of its own without keys or network.

    What it writes to `reward.json`, else its exit status: 0 is the best reward, one of `worthless` is 0.
    """

    type: Literal["evaluate"] = "evaluate"
    command: CommandLine = ()
    """What is run in the workspace: a list of words, or a line for `sh`."""
    files: WorkspaceFiles = WorkspaceFiles()
    """Laid over the workspace before: whatever the agent must not have changed, such as tests that it does not see."""
    worthless: Annotated[tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(max_length=255)] = (1,)
    """Exit statuses that mean a reward of 0; any other fails the session by name."""


class ScoredText(Strict):
    """Scores of datasets say what a final file, or the agent's last message, is worth."""

    type: Literal["scores"] = "scores"
    of: Literal["file", "last_message"] = "file"
    """What is scored."""
    file: RelativePath = Field(default="", examples=["answer.txt"])
    """File of the workspace that is scored."""
    scores: Annotated[tuple[ScoreSpec, ...], AfterValidator(distinct)] = (ExactOptions(),)
    """What it is worth: each from 0 to 1, and a weighted mean, of which 1 is the best reward."""


IMAGE = (
    r"(?=[a-z0-9])"  # no option of the engine
    r"(?:localhost|[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9.-]+:[0-9]{1,5})"  # where from: a short name would mean any
    r"(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
"""Name of an image with its registry, and a tag or a digest."""
IMAGE_HINT = "Write a registry, a path, and a tag or a digest, such as docker.io/library/python:3.12."


class Container(Strict):
    """The image in which a command runs, and what all its processes together may use."""

    image: str = Field(default="", max_length=500, examples=["docker.io/library/python:3.12"])
    """Image with its registry, and a tag or a digest; hosts have it, or may pull it."""
    column: str = Field(default="", max_length=200, examples=["image"])
    """Column of the dataset's row that names the image instead: each task has its own."""
    folder: str = Field(
        default="", max_length=500, pattern=r"^$|^(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$", examples=["/testbed"]
    )
    """Folder of the image that the workspace begins with, and where it then lies; empty: an empty `/workspace`."""
    cpus: float = Field(default=1.0, ge=0.1, le=256.0)
    """Processors that it may keep busy."""
    processes: int = Field(default=64, ge=4, le=32_768)
    """Processes and threads that there may be at a time; more are refused it."""

    def refusals(self, where: str, environment: "ProgramEnvironment") -> Iterator[Problem]:
        """Refuse no image, two ways to one, a short name, and a column of no row."""
        if not self.image and not self.column:
            hint = f"{IMAGE_HINT} Or name a column of the dataset in column."
            yield Problem(pointer=f"{where}/image", code="required", detail="There is no image.", hint=hint)
        elif self.image and self.column:
            detail = "image and column both name the image."
            yield Problem(pointer=f"{where}/column", code="not_with_image", detail=detail, hint="Leave one out.")
        elif self.image and not re.fullmatch(IMAGE, self.image):
            detail = f"{self.image!r} is no whole name of an image."
            yield Problem(pointer=f"{where}/image", code="invalid", detail=detail, hint=IMAGE_HINT)
        if self.column and environment.dataset is None:
            yield _needs_row(f"{where}/column", "Columns are those of a dataset's row")
        if self.folder.startswith(KEPT_FOLDERS) or self.folder in ("/tmp", *SYSTEM_FOLDERS):
            detail = f"{self.folder} is a folder that a container has for itself."
            hint = "Name a folder of the image with the files of the task, such as /testbed."
            yield Problem(pointer=f"{where}/folder", code="reserved", detail=detail, hint=hint)


KEPT_FOLDERS = ("/proc", "/sys", "/dev", "/flexmarl")
SYSTEM_FOLDERS = ("/bin", "/etc", "/lib", "/lib64", "/run", "/sbin", "/usr", "/var")
CommandEvaluator = Annotated[RewardFile | EvaluateCommand | ScoredText, Field(discriminator="type")]


class CommandRunner(Strict):
    """Rollout workers start a command for each session, in a sandbox with a workspace of its own."""

    type: Literal["command"] = "command"
    container: Container | None = None
    """Image that it runs in, on hosts with a container engine; null: on the host's own files."""
    package: str = Field(default="", pattern=rf"^$|{NAMED}", examples=["mini-swe-agent@2.4.6"])
    """NAME@VERSION of a package whose programs are on the command's PATH, or the id of one; empty: those of the host
    alone. In a container the image's programs alone are found, and the package has folders."""
    command: CommandLine = Field(default=(), examples=[["mini", "--task", "{prompt}"]])
    """Program and arguments, in which {prompt}, {task} and other words are filled in; or a line that `sh` reads."""
    env: Annotated[
        dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")], _Argument],
        Field(max_length=64),
    ] = {}
    """Variables that it is given beside those of the session; words in braces are filled in."""
    prompt: str = Field(default="", max_length=100_000)
    """What the agent is asked; {question} is that of the dataset's row. Empty: the row's question, where there is
    one."""
    prompt_file: RelativePath = Field(default="", examples=["PROMPT.md"])
    """File of the workspace that says instead what the agent is asked."""
    workspace: WorkspaceFiles = WorkspaceFiles()
    """What the folder holds in which the command begins."""
    evaluator: CommandEvaluator = RewardFile()
    """How its reward is found once it has ended."""
    memory_mb: int = Field(default=2048, ge=64, le=65_536)
    """Address space of each of its processes in MiB; a process that needs more is refused it. In a container: memory of
    all of them together, and one of them is killed that needs more."""
    disk_mb: int = Field(default=64, ge=16, le=4096)
    """Space of its workspace, its home and /tmp together in MiB."""
    score_timeout_s: float = Field(default=20.0, gt=0.0, le=3600.0)
    """Timeout for the reward of a command that has ended, its evaluator's own time included."""
    close_timeout_s: float = Field(default=5.0, gt=0.0, le=600.0)
    """Timeout for ending its processes and comparing its files; then they are killed. The session counts
    nevertheless."""
    pinned: PinnedBuild = PinnedBuild()
    """Build that the control plane writes down when the run is made; not set by hand."""

    def refusals(self, environment: "ProgramEnvironment") -> Iterator[Problem]:
        """Refuse what cannot be run, filled in, or scored, each with field, rule and legal value."""
        runner = "/environment/runner"
        hint = 'Write a list such as ["mini", "--task", "{prompt}"], or a line for sh.'
        yield from _command(f"{runner}/command", self.command, hint)
        if self.prompt and self.prompt_file:
            detail = "prompt and prompt_file both say what the agent is asked."
            yield Problem(pointer=f"{runner}/prompt_file", code="not_with_prompt", detail=detail, hint="Leave one out.")
        for name in self.env:
            if name.startswith(OWN_VARIABLES) or name in OWN_NAMES:
                detail = f"{name} is set for each session: the address and key of its agents, and its own folders."
                hint = "Give it another name, or leave it out."
                yield Problem(pointer=f"{runner}/env/{name}", code="reserved", detail=detail, hint=hint)
        if "question" in words_in(self.prompt) and environment.dataset is None:
            yield _needs_row(f"{runner}/prompt", "{question} is that of a dataset's row")
        if self.container is not None:
            yield from self.container.refusals(f"{runner}/container", environment)
        yield from self._files(f"{runner}/workspace", self.workspace, environment)
        yield from self._evaluator(environment)

    def _files(self, where: str, files: WorkspaceFiles, environment: "ProgramEnvironment") -> Iterator[Problem]:
        if files.folder and not self.package:
            detail = "Folders are those of a package, and the runner names none."
            hint = "Set environment.runner.package, or leave folder out."
            yield Problem(pointer=f"{where}/folder", code="needs_package", detail=detail, hint=hint)
        if files.columns and environment.dataset is None:
            yield _needs_row(f"{where}/columns", "Columns are those of a dataset's row")

    def _evaluator(self, environment: "ProgramEnvironment") -> Iterator[Problem]:
        match self.evaluator:
            case EvaluateCommand(command=command, files=files):
                hint = 'Write a list such as ["python", "-m", "pytest", "-q"], or a line for sh.'
                yield from _command(f"{EVALUATOR}/command", command, hint)
                yield from self._files(f"{EVALUATOR}/files", files, environment)
            case ScoredText() as scored:
                yield from _scored(scored, environment)


def _command(where: str, command: CommandLine, hint: str) -> Iterator[Problem]:
    """Refuse a command of nothing, and a line for a shell in which a word would have to be filled in."""
    if not command or (not isinstance(command, str) and not command[0]) or not "".join(command).strip():
        yield Problem(pointer=where, code="required", detail="There is no command.", hint=hint)
    elif isinstance(command, str) and (found := words_in(command)):
        detail = f"{{{found[0]}}} is filled in in lists of words alone; in a line the shell would read what it says."
        hint = 'Write a list, or use "$(cat "$FLEXMARL_PROMPT")" and the other variables of the session.'
        yield Problem(pointer=where, code="not_in_a_line", detail=detail, hint=hint)


def _scored(scored: ScoredText, environment: "ProgramEnvironment") -> Iterator[Problem]:
    """Refuse scores of no text, of an agent, and of rows that are not there."""
    if scored.of == "file" and not scored.file:
        detail = "The evaluator scores a file and names none."
        hint = "Name one, such as answer.txt, or set of: last_message."
        yield Problem(pointer=f"{EVALUATOR}/file", code="required", detail=detail, hint=hint)
    if scored.of == "last_message" and scored.file:
        detail = "The evaluator scores the last message, and a file is named too."
        yield Problem(pointer=f"{EVALUATOR}/file", code="not_with_last_message", detail=detail, hint="Set of: file.")
    for place, score in enumerate(scored.scores):
        where = f"{EVALUATOR}/scores/{place}"
        if isinstance(score, JudgeOptions):
            detail = "A judge is an agent that grades answers to rows of environment.type dataset."
            hint = "Have the program ask the judge, as a seat of its own."
            yield Problem(pointer=f"{where}/type", code="not_with_program", detail=detail, hint=hint)
        elif environment.dataset is None and _compares(score):
            yield _needs_row(f"{where}/type", f"{score.label} compares with a dataset's row")
        unknown = [] if isinstance(score.pays, str) else [one for one in score.pays if one not in environment.seats]
        if unknown:
            seats = ", ".join(environment.seats)
            detail, hint = f"There is no seat {unknown[0]}.", f"Write all, team, seats or some of {seats}."
            yield Problem(pointer=f"{where}/pays", code="out_of_range", detail=detail, hint=hint)
    if not any(score.counts_for(None) for score in scored.scores):
        detail = "No score pays the team."
        yield Problem(pointer=f"{EVALUATOR}/scores", code="required", detail=detail, hint="Write pays: all at one.")


def _compares(score: ScoreOptions) -> bool:
    """Tell whether a score compares a text with a row."""
    return score.plugin_name() not in ROW_FREE or (isinstance(score, RegexOptions) and ANSWER_HERE in score.pattern)


def _needs_row(where: str, why: str) -> Problem:
    hint = "Set environment.dataset: {name: ...} to a dataset that was imported."
    return Problem(
        pointer=where, code="needs_dataset", detail=f"{why}, and the environment names no dataset.", hint=hint
    )
