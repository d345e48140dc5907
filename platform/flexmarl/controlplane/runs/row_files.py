"""A run's trained rows as files: lines of JSON for what is said of each, safetensors for its tokens.

The format is documented in `docs/api.md` ("Rows as files") and has a number: a reader refuses another one. Files are
written under another name and renamed when they are whole; the description of all comes last, so a folder without it is
no export.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
from safetensors.numpy import save

from flexmarl.contracts.row_files import DESCRIPTION, FORMAT, FORMAT_VERSION
from flexmarl.store.reads.trained_rows import TrainedRow

SHARD_TOKENS = 4_000_000
"""Tokens after which a file is full; its last row is whole."""

Tensors = dict[str, npt.NDArray[Any]]


def write(folder: Path, rows: Iterable[TrainedRow], about: dict[str, Any], shard_tokens: int = SHARD_TOKENS) -> int:
    """Write rows to a folder that is new or empty; returns how many there were. Raises FileExistsError."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty")
    files: list[dict[str, Any]] = []
    shard: list[TrainedRow] = []
    grammars: dict[str, str] = {}
    tokens = 0
    for row in rows:
        shard.append(row)
        grammars |= row.grammars
        tokens += row.row.arrays.n_prompt + row.row.arrays.n_response
        if tokens >= shard_tokens:
            files.append(_shard(folder, len(files), shard))
            shard, tokens = [], 0
    if shard:
        files.append(_shard(folder, len(files), shard))
    total = sum(int(file["rows"]) for file in files)
    described = {"format": FORMAT, "format_version": FORMAT_VERSION, **about, "rows": total, "files": files}
    if grammars:
        described["grammars"] = grammars
    _put(folder / DESCRIPTION, json.dumps(described, indent=1).encode() + b"\n")
    return total


def _shard(folder: Path, number: int, rows: list[TrainedRow]) -> dict[str, Any]:
    name = f"rows-{number:05}"
    _put(folder / f"{name}.jsonl", b"".join(orjson.dumps(_line(row)) + b"\n" for row in rows))
    _put(folder / f"{name}.safetensors", save(tensors_of(rows), {"format": FORMAT, "version": str(FORMAT_VERSION)}))
    return {"name": name, "rows": len(rows)}


def _line(one: TrainedRow) -> dict[str, Any]:
    row, episode = one.row, one.episode
    return {
        "policy": one.policy, "step": one.step, "version": one.version, "draw": row.draw, "member": row.member,
        "attempt": row.attempt, "role": row.role, "turn": row.turn, "segments": row.segments,
        "temperature": row.temperature, "weight": row.weight, "advantages": row.advantages, "spans": row.spans,
        "task": episode.task, "scores": episode.scores, "team_score": episode.team_score, "solved": episode.solved,
        "task_seed": one.task_seed, "rewards": one.rewards,
        **({"grammars": row.grammars} if row.grammars else {}),
        **({"offsets": row.offsets} if row.offsets != list(range(len(row.offsets))) else {}),
        **({"steps": np.frombuffer(row.steps, "<i2").tolist()} if row.steps else {}),
    }  # fmt: skip


def tensors_of(rows: list[TrainedRow]) -> Tensors:
    """Join rows: all tokens one behind the other, and where each row begins and ends."""
    parts = [_tokens(one) for one in rows]
    lengths = [len(part["ids"]) for part in parts]
    allowed = [one.row.arrays.allowed_ids() for one in rows]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} | {
        "offsets": np.cumsum([0, *lengths], dtype=np.int64),
        "allowed": np.concatenate(allowed).astype(np.int32),
        "allowed_offsets": np.cumsum([0, *map(len, allowed)], dtype=np.int64),
    }


def _tokens(one: TrainedRow) -> Tensors:
    """Put what was read and what was sampled in their order: turn by turn."""
    row, arrays = one.row, one.row.arrays
    spans = np.array(row.spans, np.int64)
    mask = np.repeat(np.tile(np.array([False, True]), len(spans) // 2), spans)
    found: Tensors = {"ids": np.empty(len(mask), np.int32), "mask": mask.astype(np.uint8)}
    found["ids"][~mask], found["ids"][mask] = arrays.prompt_ids(), arrays.response_ids()
    told = {"logprobs": arrays.response_logprobs(), "advantages": np.repeat(row.advantages, spans[1::2])}
    for name, values in told.items():
        found[name] = np.zeros(len(mask), np.float32)
        found[name][mask] = values
    return found


def _put(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)
