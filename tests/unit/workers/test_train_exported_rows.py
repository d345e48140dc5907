"""A warm-up on rows that an earlier run exported: what was sampled in them is learned, and nothing else of them."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from pydantic import ValidationError

from flexmarl.contracts.row_files import ImportedRow, RowLine
from flexmarl.contracts.specification.demonstrations import SupervisedWarmup
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.language.dataset_rows import digest_of
from flexmarl.store.control import runs
from flexmarl.store.data import dataset_contents
from workers.child import IntervalLog
from workers.errors import ChildRefused
from workers.nodes.demonstrations import with_demonstrations
from workers.training.errors import TrainerRefusal
from workers.training.exported_rows import ExportedRows
from workers.training.trainer import CREATE, Trainer
from workers.training.wire import BindReply, BindRequest
from workers.transfer import LocalTier

ROLES = ("planner", "solver", "verifier")


def row(number: int, role: str = "planner", spans: tuple[int, ...] = (3, 2), **more: Any) -> bytes:
    """A row as it is kept; its words follow from its number."""
    mask = np.repeat(np.arange(len(spans)) % 2, spans).astype("u1")
    ids = ((np.arange(len(mask)) * 3 + number) % 9 + 1).astype("<i4")
    said = RowLine(
        role, 1, 1, number, 0, 1, role, 0, [0, int(mask.sum())], 1.0, 1.0, [0.5] * (len(spans) // 2), list(spans), {},
        {role: more.get("score", 1.0)}, 0.25, more.get("solved", True),
    )  # fmt: skip
    logprobs = np.where(mask, more.get("logprob", -0.5), 0).astype("<f4")
    advantages = np.where(mask, 0.5, 0).astype("<f4")
    arrays = (ids.tobytes(), mask.tobytes(), logprobs.tobytes(), advantages.tobytes(), b"")
    return msgspec.msgpack.encode(ImportedRow(msgspec.json.encode(said), *arrays))


def specified(rows: dict[str, Any] | None, **warmup: Any) -> ExperimentSpec:
    policy = {} if rows is None else {"warmup": {"steps": 1, "rows": {"name": "good_run", **rows}, **warmup}}
    document = {
        "agents": {role: {} for role in ROLES},
        "environment": {"type": "arithmetic"},
        "policies": {"planner": policy},
    }
    return ExperimentSpec.model_validate(document)


def bind(home: Path, lines: list[bytes], rows: dict[str, Any] | None = None, **warmup: Any) -> BindReply:
    spec = specified(rows or {}, **{"batch_size": len(lines), **warmup})
    return Trainer(spec, 1, "a", str(home), "cpu", IntervalLog()).bind(
        BindRequest("planner", CREATE, demonstrations=lines)
    )


def test_what_was_sampled_is_learned_and_the_optimizer_is_fresh_afterwards(tmp_path: Path) -> None:
    lines = [row(number, spans=((3, 2), (2, 1, 1, 2))[number % 2]) for number in range(8)]
    reply = bind(tmp_path, lines, steps=20, learning_rate=3e-3)
    facts = reply.facts
    assert facts["warmup_loss_last"] < 0.7 * facts["warmup_loss_first"]
    assert (facts["warmup_rows"], facts["warmup_skipped"], facts["warmup_tokens"]) == (8, 0, 20 * (4 * 2 + 4 * 3))
    state = LocalTier(tmp_path, "reader").get(reply.state)
    assert int(state["steps"]) == 0
    assert not torch.count_nonzero(state["first"])


def test_neither_log_probabilities_nor_scores_of_the_rows_change_what_is_learned(tmp_path: Path) -> None:
    one = bind(tmp_path / "a", [row(number, logprob=-0.5) for number in range(4)], steps=3)
    other = bind(tmp_path / "b", [row(number, logprob=-9.0, score=0.0) for number in range(4)], steps=3)
    assert one.digest == other.digest
    assert bind(tmp_path / "c", [row(number + 1) for number in range(4)], steps=3).digest != one.digest


def test_turns_keep_their_order_and_rows_longer_than_the_context_are_left_out() -> None:
    rows = ExportedRows([row(0, spans=(2, 1, 1, 2)), row(1, spans=(9, 2)), row(2, spans=(3, 0))], 8, seed=1)
    found = rows.draw(5)
    ids = np.frombuffer(msgspec.msgpack.decode(row(0, spans=(2, 1, 1, 2)), type=ImportedRow).ids, "<i4")
    assert {tuple(one.spans) for one in found} == {(2, 1, 1, 2)}
    assert np.frombuffer(found[0].prompt, "<i4").tolist() == ids[[0, 1, 3]].tolist()
    assert np.frombuffer(found[0].response, "<i4").tolist() == ids[[2, 4, 5]].tolist()
    assert (found[0].advantages, found[0].weight, found[0].temperature) == ([1.0, 1.0], 1.0, 1.0)
    assert rows.facts() == {"warmup_rows": 1, "warmup_skipped": 2}
    with pytest.raises(TrainerRefusal, match=r"no_demonstrations: .*all 1 rows are longer than its context of 8"):
        ExportedRows([row(1, spans=(9, 2))], 8, seed=1).draw(1)


def test_ids_of_another_tokenizer_or_outside_of_the_vocabulary_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TrainerRefusal, match=r"tokenizer_differs: warmup.rows: .*planner in good_run .*abab"):
        bind(tmp_path, [row(0)], {"tokenizers": {"planner": "ab" * 32}})
    own = bind(tmp_path / "own", [row(0)])
    same = bind(tmp_path / "same", [row(0)], {"tokenizers": {"planner": sha256(own.tokenizer).hexdigest()}})
    assert same.digest == own.digest
    kept = msgspec.msgpack.decode(row(0), type=ImportedRow)
    kept.ids = np.full(5, 100_000, "<i4").tobytes()
    with pytest.raises(TrainerRefusal, match="malformed_row"):
        bind(tmp_path / "outside", [msgspec.msgpack.encode(kept)])


def test_an_archive_does_not_begin_with_ids_of_another_tokenizer(tmp_path: Path) -> None:
    own = bind(tmp_path / "own", [row(0)])
    mine = sha256(own.tokenizer).hexdigest()
    for number, (replay, role, digest) in enumerate(
        [("archive", "planner", "ab" * 32), ("none", "planner", "ab" * 32), ("archive", "solver", "ab" * 32),
         ("archive", "planner", mine)]
    ):  # fmt: skip
        named = {"name": "good_run", "tokenizers": {role: digest}}
        spec = specified(None).model_dump(mode="json")
        spec["sampling"]["replay"] |= {"type": replay, "begins_with": named}
        trainer = Trainer(
            ExperimentSpec.model_validate(spec), 1, "a", str(tmp_path / str(number)), "cpu", IntervalLog()
        )
        if number:
            assert trainer.bind(BindRequest("planner", CREATE)).created
            continue
        with pytest.raises(
            TrainerRefusal, match=r"tokenizer_differs: sampling.replay.begins_with: .*planner in good_run"
        ):
            trainer.bind(BindRequest("planner", CREATE))


def test_a_node_sends_the_rows_of_the_roles_that_are_good_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [row(0), row(1, solved=False), row(2, score=0.4), row(3, "solver"), row(4, score=0.6)]
    held = digest_of((False, line) for line in lines)
    monkeypatch.setattr(dataset_contents, "lines", lambda conn, digest: ((False, line) for line in lines))

    def sent(digest: str = held, **rows: Any) -> list[bytes]:
        spec = specified({"digest": digest, **rows}, steps=2, batch_size=4).model_dump(mode="json")
        monkeypatch.setattr(runs, "load_spec", lambda conn, run_id: spec)
        return with_demonstrations(None, 7, BindRequest("planner", CREATE)).demonstrations  # type: ignore[arg-type]

    assert sent() == [lines[0], lines[2], lines[4]]
    assert sent(solved=False) == [lines[0], lines[1], lines[2], lines[4]]
    assert sent(least_score=0.5) == [lines[0], lines[4]]
    with pytest.raises(ChildRefused, match="of 5 rows of good_run none are of planner, solved the task, scored at lea"):
        sent(least_score=2)
    with pytest.raises(ChildRefused, match="good_run: the store holds 5 rows"):
        sent("0" * 64)


def test_a_warm_up_on_rows_has_gentle_steps_unless_it_says_more_and_one_source() -> None:
    gentle = SupervisedWarmup.model_validate({"steps": 2, "rows": {"name": "good_run"}})
    assert (gentle.batch_size, gentle.learning_rate, gentle.max_seconds) == (16, 1e-5, 3600.0)
    assert SupervisedWarmup.model_validate({"steps": 2}).learning_rate == 2e-3
    both = {"steps": 2, "rows": {"name": "good_run"}, "demonstrations": {"dataset": {"name": "talks"}}}
    with pytest.raises(ValidationError, match="demonstrations are named too"):
        SupervisedWarmup.model_validate(both)
