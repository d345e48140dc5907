"""Rows as files: each that was trained once, token by token as it was stored, whatever was replayed later."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from flexmarl.controlplane.runs import row_files
from flexmarl.store.errors import Refused
from flexmarl.store.reads.trained_rows import trained_rows

pytestmark = pytest.mark.services


@pytest.fixture
def trained(story):
    """Two steps; the second one is taken on a group of the first again."""
    lease_id = story.trainer("t1")
    story.settle(0, 1)
    story.cut(0, 0, 1)
    story.accumulate(lease_id, 0, "0:t1")
    story.step(lease_id, "0:t1", (0,), 1)
    story.settle(2, version=1)
    story.cut(1, 2)
    story.cut(2, 0, replayed=True)
    story.accumulate(lease_id, 1, "1:t1")
    story.accumulate(lease_id, 2, "1:t1")
    story.step(lease_id, "1:t1", (1, 2), 2)
    return story


def exported(folder, name):
    lines = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
    return lines, load_file(folder / f"{name}.safetensors")


@pytest.mark.parametrize("shard_tokens", [1_000_000, 12])
def test_each_trained_row_is_there_once_with_its_tokens(trained, tmp_path, shard_tokens):
    folder = tmp_path / "rows"
    trained.conn.execute("UPDATE store.sample SET reward = member / 4.0")
    about = {"run": "run-1", "tokenizers": {"solver": "ab"}}
    assert row_files.write(folder, trained_rows(trained.conn, 1), about, shard_tokens) == 6
    described = json.loads((folder / row_files.DESCRIPTION).read_text())
    stated = {name: value for name, value in described.items() if name != "files"}
    assert stated == {"format": "flexmarl-rows", "format_version": 3, **about, "rows": 6}
    assert len(described["files"]) == (1 if shard_tokens > 12 else 3)
    keys = []
    for file in described["files"]:
        lines, tensors = exported(folder, file["name"])
        assert len(lines) == file["rows"] == len(tensors["offsets"]) - 1
        for number, line in enumerate(lines):
            keys.append((line["draw"], line["member"]))
            own = slice(*tensors["offsets"][number : number + 2])
            assert tensors["ids"][own].tolist() == [1, 10 * line["draw"], line["member"], 4, 5, 6]
            assert tensors["mask"][own].tolist() == [0, 0, 0, 1, 1, 1]
            assert tensors["logprobs"][own].tolist() == [0.0, 0.0, 0.0, -0.5, -0.25, -0.125]
            assert tensors["advantages"][own].tolist() == [0.0] * 3 + [line["member"] - 0.5] * 3
            allowed = slice(*tensors["allowed_offsets"][number : number + 2])
            assert tensors["allowed"][allowed].tolist() == [4, 5, 6, 7]
            assert (line["team_score"], line["step"], line["version"]) == (line["member"], 1, 1 + (line["draw"] == 2))
            assert (line["task_seed"], line["rewards"]) == (line["draw"], [line["member"] / 4])
    assert sorted(keys) == [(draw, member) for draw in range(3) for member in range(2)]


def test_turns_that_alternate_keep_their_order(trained):
    [one, *_] = trained_rows(trained.conn, 1)
    one.row.spans[:], one.row.advantages[:] = [1, 2, 2, 1], [0.5, -1.0]
    found = row_files.tensors_of([one])
    assert found["ids"].tolist() == [1, 4, 5, 0, 0, 6]
    assert found["mask"].tolist() == [0, 1, 1, 0, 0, 1]
    assert np.array_equal(found["advantages"], np.array([0, 0.5, 0.5, 0, 0, -1.0], np.float32))


def test_a_folder_with_something_in_it_and_tokens_that_are_gone_are_refused_by_name(trained, tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(FileExistsError, match="is not empty"):
        row_files.write(tmp_path, trained_rows(trained.conn, 1), {})
    trained.conn.execute("UPDATE store.sample SET payload = NULL WHERE draw = 1")
    with pytest.raises(Refused, match="keeps the tokens of a share"):
        row_files.write(tmp_path / "rows", trained_rows(trained.conn, 1), {})
    assert not (tmp_path / "rows" / row_files.DESCRIPTION).exists()
