"""Rows of a run as files, and as one that was imported is kept: what the writer, the reader and the trainer share.

The format is documented in `docs/api.md` ("Rows as files"). Its number changes with it: a reader refuses another one.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

FORMAT, FORMAT_VERSION = "flexmarl-rows", 3
READ_VERSIONS = (2, 3)
"""2 has neither tasks nor rewards of turns."""
DESCRIPTION = "export.json"


class PairOfFiles(msgspec.Struct, forbid_unknown_fields=True):
    """A pair of files, `NAME.jsonl` and `NAME.safetensors`."""

    name: str
    rows: int


class RowExport(msgspec.Struct, forbid_unknown_fields=True):
    """What `export.json` says."""

    format: str
    format_version: int
    run: str
    """Key of the run, in the installation that it ran in."""
    environment: dict[str, Any]
    """Of the run's specification."""
    tokenizers: dict[str, str]
    """Policy -> SHA-256 of its tokenizer."""
    rows: int
    files: list[PairOfFiles]
    grammars: dict[str, str] = {}
    """What replies were held to: digest -> `ReplyGrammar` as JSON; none where nothing was."""


class RowLine(msgspec.Struct, forbid_unknown_fields=True):
    """What a line of `NAME.jsonl` says of a row, in the order of its members."""

    policy: str
    step: int
    """Train step that it was first trained in, from 1."""
    version: int
    """Version that this step made."""
    draw: int
    member: int
    attempt: int
    role: str
    turn: int
    """The first of the chain."""
    segments: list[int]
    """version, tokens, version, tokens, ... over what was sampled: the policies that the log-probabilities are of."""
    temperature: float
    weight: float
    advantages: list[float]
    """Of each turn."""
    spans: list[int]
    """Tokens read, tokens sampled, ... by turns."""
    task: dict[str, Any]
    scores: dict[str, float]
    team_score: float
    solved: bool
    grammars: list[str] = []
    """Of each turn, the digest of what its reply was held to, empty for nothing; none where no reply was."""
    task_seed: int | None = None
    """Which task it was, to whoever plays the same environment with the same options; None: format 2."""
    rewards: list[float] = []
    """Of each turn; format 2 has none."""
    offsets: list[int] = []
    """How many turns of its role each turn stands behind the first; none: they follow each other."""
    steps: list[int] = []
    """Of each sampled token, the step of its block that revealed it, from 0; none where no block diffusion made it."""


class ImportedRow(msgspec.Struct, array_like=True):
    """A row as it is kept: the bytes that its two files have of it, unchanged. Arrays are little-endian."""

    line: bytes
    """JSON of a `RowLine`, without its line feed."""
    ids: bytes
    """int32[tokens]"""
    mask: bytes
    """uint8[tokens]: 1 where the policy sampled it."""
    logprobs: bytes
    """float32[tokens]: as the engine reported, 0 where nothing was sampled."""
    advantages: bytes
    """float32[tokens], likewise."""
    allowed: bytes
    """int32[...]: ids that could be sampled; empty: all."""


def game_of(environment: Mapping[str, Any]) -> str:
    """Name the game of an environment: its type and, of games from packages and generators, which one; its options and
    the version of its package are not part of it."""
    package = str(environment.get("package") or "").partition("@")[0]
    named = [environment.get(field) for field in ("environment", "dataset")]
    return " ".join(
        [str(environment["type"]), *filter(None, [package]), *(one for one in named if isinstance(one, str))]
    )
