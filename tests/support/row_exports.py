"""Exports of rows as `export_rows` writes them, small ones."""

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from flexmarl.controlplane.runs import row_files
from flexmarl.controlplane.runs.models import RowSet
from flexmarl.controlplane.runs.row_sets import actions
from flexmarl.store.data.micro_batches import MicroBatchRow
from flexmarl.store.data.payload import allowed_length, pack, unpack
from flexmarl.store.reads.trained_rows import RowEpisode, TrainedRow
from tests.support.packing import packed

GAME: dict[str, Any] = {"type": "arithmetic", "modulus": 5}
TOKENIZER = "ab" * 32


def trained_row(number: int, role: str = "planner", **more: Any) -> TrainedRow:
    """A row of two turns that reads 1, 2 and 3 and says 4, 5 and 6, solved where its number is even."""
    read, said = more.get("read", [1, 2, 3]), more.get("said", [4, 5, 6])
    allowed, spans = more.get("allowed", [4, 5, 6, 9]), more.get("spans", [2, 1, 1, 2])
    logprobs = np.linspace(-1.5, -0.1, len(said), dtype=np.float32)
    payload = pack(read, said, logprobs, allowed)
    arrays = unpack(payload, len(read), len(said), allowed_length(allowed))
    advantages = [0.1 * number - 1 / 3] * (len(spans) // 2)
    row = MicroBatchRow(
        number // 2, number % 2, 1, role, 0, [3, len(said)], 0.7, 0.25, spans, [0, 1], advantages, arrays, []
    )
    score = (number % 5) / 4
    episode = RowEpisode({"title": f"sum {number}, ü"}, {role: score}, score, number % 2 == 0)
    seed, rewards = more.get("task_seed", number // 2), [0.0] * (len(spans) // 2)
    return TrainedRow(more.get("policy", role), 1 + number, 2 + number, row, episode, {}, seed, rewards)


def folder_of(folder: Path, rows: list[TrainedRow], shard_tokens: int = 1_000_000, **about: Any) -> Path:
    """Write an export to a new folder."""
    policies = {row.policy: TOKENIZER for row in rows}
    told = {"run": "run-7", "environment": GAME, "tokenizers": policies, **about}
    row_files.write(folder, rows, told, shard_tokens)
    return folder


def make_row_set(actor: Any, project: str = "default", name: str = "good_run") -> RowSet:
    """Import four rows of two roles."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [trained_row(number, role) for number in range(2) for role in ("planner", "solver")]
        body = packed(folder_of(Path(folder) / "rows", rows))
    return actions.imported(actor, name=name, project=project, body=io.BytesIO(body))
