"""A node copies what rows speak of to the object store; another one brings it when no host has it any more."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.unit.workers.test_node_bringing import bring, settings
from workers.errors import SettingsError
from workers.nodes import bringing, copies
from workers.nodes.copies import Copies
from workers.rollout.engines.wire import LoadRequest
from workers.settings import Settings, load
from workers.training.wire import BindRequest
from workers.transfer import LocalTier, StateError
from workers.transfer.objects import ObjectStore


class Rows:
    """What the database speaks of."""

    def __init__(self, *digests: str) -> None:
        self.wanted = set(digests)

    async def __call__(self, _: object) -> set[str]:
        return self.wanted


def told(home: Path, url: str, key: str = "key") -> Settings:
    return replace(settings(home, key), object_store=url)


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket" if request.param == "file" else f"memory://{tmp_path.name}"


async def test_a_new_host_brings_what_the_last_one_copied(url: str, tmp_path: Path):
    there = LocalTier(tmp_path / "a")
    base = there.put({"w": torch.rand(3_000_000)}, {"kind": "base"}).digest
    weights = there.put({"down": torch.rand(8)}, {"kind": "weights", "base": base}).digest
    state = there.put({"first": torch.rand(8)}, {"kind": "training_state", "weights": weights}).digest
    other = there.put({"first": torch.rand(9)}).digest
    await Copies(told(tmp_path / "a", url), Rows(weights, state, "0" * 64)).tend()
    assert ObjectStore(url).whole() == {base, weights, state}, "what rows speak of, and what it is laid over"

    async def nobody(_: object) -> bringing.Elsewhere:
        return bringing.Elsewhere([])

    carrier = bringing.Bringing(told(tmp_path / "b", url), nobody, "own")
    assert await carrier(7, BindRequest("solver", 1, weights, state))
    here = LocalTier(tmp_path / "b", "reader")
    for digest in (base, weights, state):
        for name, tensor in there.get(digest).items():
            assert torch.equal(here.get(digest)[name], tensor)
    assert not await carrier(7, LoadRequest("solver", 1, other)), "nobody copied it"
    assert not await bring(tmp_path / "c", [], LoadRequest("solver", 1, weights)), "no store, no other node"


async def test_what_nothing_speaks_of_goes_and_what_is_shared_stays(url: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(copies, "COLLECT_S", 0.0)
    there, rows = LocalTier(tmp_path / "a"), Rows()
    same = torch.rand(2_200_000)  # a chunk and some more
    base = there.put({"w": torch.rand(9)}, {"kind": "base"}).digest
    old, new = (there.put({"a": same, "b": torch.rand(5)}, {"base": base, "n": n}).digest for n in (1, 2))
    rows.wanted = {old, new}
    node = Copies(told(tmp_path / "a", url), rows)
    await node.tend()
    rows.wanted = {new}
    await node.tend()
    assert ObjectStore(url).whole() == {base, old, new}, "somebody may be writing what lists it"
    store = ObjectStore(url)
    assert store.collect({new}, -1.0) == [old]
    assert store.whole() == {base, new}
    assert store._names(f"{store._root}/chunks") == {
        *there.description(new).chunks, *there.description(base).chunks
    }  # fmt: skip
    monkeypatch.setattr(copies, "GRACE_S", -1.0)
    rows.wanted = set()
    await node.tend()
    assert store.contents() == set()
    assert store._names(f"{store._root}/chunks") == set()


async def test_a_copy_that_went_missing_is_made_anew(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copies, "COLLECT_S", 0.0)
    there = LocalTier(tmp_path / "a")
    digest = there.put({"w": torch.rand(99)}).digest
    node, store = Copies(told(tmp_path / "a", url), Rows(digest)), ObjectStore(url)
    await node.tend()
    store._remove(store._chunk(there.description(digest).chunks[0]))
    assert store.whole() == set()
    await node.tend()
    assert store.whole() == {digest}


async def test_the_folder_of_another_installation_is_left_alone(url: str, tmp_path: Path, caplog):
    there = LocalTier(tmp_path / "a")
    first, second = there.put({"w": torch.rand(9)}).digest, there.put({"w": torch.rand(8)}).digest
    await Copies(told(tmp_path / "a", url), Rows(first)).tend()
    await Copies(told(tmp_path / "a", url, key="another"), Rows(second)).tend()
    assert ObjectStore(url).whole() == {first}
    with pytest.raises(StateError, match="another installation"):
        ObjectStore(url).belongs_to("x")


async def test_a_store_that_does_not_answer_stops_nothing(tmp_path: Path):
    there = LocalTier(tmp_path / "a")
    digest = there.put({"w": torch.rand(9)}).digest
    (tmp_path / "bucket").write_text("in the way")
    node = Copies(told(tmp_path / "a", f"file://{tmp_path}/bucket"), Rows(digest))
    await node.tend()
    (tmp_path / "bucket").unlink()
    await node.tend()
    assert ObjectStore(f"file://{tmp_path}/bucket").whole() == {digest}


async def test_what_is_harmed_here_is_not_copied(tmp_path: Path):
    there = LocalTier(tmp_path / "a")
    digest, whole = there.put({"w": torch.rand(9)}).digest, there.put({"w": torch.rand(8)}).digest
    chunk = there.chunk(there.description(digest).chunks[0])
    chunk.write_bytes(b"\1" + chunk.read_bytes()[1:])
    url = f"file://{tmp_path}/bucket"
    await Copies(told(tmp_path / "a", url), Rows(digest, whole)).tend()
    assert ObjectStore(url).whole() == {whole}


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("/mnt/share", "PROTOCOL://FOLDER"),
        ("s3://", "PROTOCOL://FOLDER"),
        ("s4://bucket", "not a protocol that fsspec knows"),
        ("sftp+nothing://x/y", "not a protocol that fsspec knows"),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_one_that_can(url: str, said: str, tmp_path: Path):
    env = {
        "DATABASE_URL": "postgresql://x/x",
        "REDIS_URL": "redis://x",
        "FLEXMARL_HOME": str(tmp_path),
        "FLEXMARL_CLUSTER_KEY": "key",
    }
    with pytest.raises(SettingsError, match=r"FLEXMARL_OBJECT_STORE.*(s3://|s3,)") as refused:
        load({**env, "FLEXMARL_OBJECT_STORE": url})
    assert said in str(refused.value)
    assert load({**env, "FLEXMARL_OBJECT_STORE": "memory://x"}).object_store == "memory://x"


def test_a_protocol_whose_package_is_missing_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(_: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    env = {
        "DATABASE_URL": "postgresql://x/x",
        "REDIS_URL": "redis://x",
        "FLEXMARL_HOME": str(tmp_path),
        "FLEXMARL_CLUSTER_KEY": "key",
    }
    with pytest.raises(SettingsError, match="not installed here: Install s3fs"):
        load({**env, "FLEXMARL_OBJECT_STORE": "s3://bucket/folder"})
