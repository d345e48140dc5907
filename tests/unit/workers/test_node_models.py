"""A node imports models in processes of their own, and fetches those that its devices need."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import torch
from safetensors.torch import load_file

from flexmarl.contracts.specification.team import RegisteredModel
from flexmarl.store.control import model_rows
from flexmarl.store.data.model_roots import ModelRoots
from tests.support.hub_server import COMMIT, HubServer, hub_server
from tests.support.upload_server import UploadServer, upload_server
from tests.unit.workers.test_inspecting import write_chat_model
from workers import settings
from workers.models import UnsupportedModel, tokenizer_of
from workers.models.opening import allow
from workers.models.stored import FILES, OWNER, put_model, stored_folder
from workers.models.weights import initial_weights, weight_shapes
from workers.nodes import import_process
from workers.nodes import models as node_models
from workers.nodes.bringing import Elsewhere
from workers.nodes.models import Holding, Importing
from workers.training.folders import root_of, write_manifest
from workers.transfer import LocalTier
from workers.transfer.base import Source


class Node:
    """A node of a test: its home, its allowed root with a model, and the store."""

    def __init__(self, conn, folder: Path) -> None:
        self.conn, self.home, self.root = conn, folder / "home", folder / "models"
        self.home.mkdir()
        self.model = write_chat_model(self.root / "mine")
        urls = {"DATABASE_URL": "postgresql://here/x", "REDIS_URL": "redis://here/0"}
        known = settings.load({**urls, "FLEXMARL_HOME": str(self.home), "FLEXMARL_CLUSTER_KEY": "x"})
        self.settings = replace(known, node="box", model_roots=(str(self.root),))
        self.importing = Importing(self.settings, self.store)
        self.holding = Holding(self.settings, self.store, "box:1")

    async def store(self, call):
        return call(self.conn)

    def asked(self, **source: str) -> UUID:
        model = uuid4()
        model_rows.create(self.conn, model, "default", "mine", {"type": "folder", **source}, ("ada", "1"))
        return model

    def row(self, model: UUID) -> tuple[str, str, str, str, dict]:
        return self.conn.execute(
            "SELECT state, reason, reason_text, digest, facts FROM store.model WHERE id = %s", [model]
        ).fetchone()


@pytest.fixture
def node(store_conn, tmp_path: Path) -> Iterator[Node]:
    yield Node(store_conn, tmp_path)
    allow(ModelRoots())


@pytest.mark.services
def test_a_model_is_imported_and_read_by_its_digest_without_its_folder(node: Node):
    model = node.asked(path=str(node.model))
    asyncio.run(node.importing.tend())
    state, reason, text, digest, facts = node.row(model)
    assert (state, reason) == ("done", ""), text
    assert (facts["architecture"], facts["context"]) == ("llama", 128)
    assert digest in LocalTier(node.home, OWNER).claims()
    weights, words = load_file(node.model / "model.safetensors"), (node.model / "tokenizer.json").read_bytes()
    allow(ModelRoots(), str(node.home))
    source = RegisteredModel(name="mine", digest=digest)
    (node.model / "model.safetensors").unlink()
    found = initial_weights(source, 0, 0)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert tokenizer_of(source, ()) == words
    assert sha256(words).hexdigest() == facts["tokenizer"]
    assert weight_shapes(source, 0) == {name: tuple(tensor.shape) for name, tensor in weights.items()}


@pytest.mark.services
def test_a_model_of_a_hub_is_fetched_pinned_and_kept_without_its_files(node: Node):
    with hub_server(HubServer({"us/mine": node.model}, private=frozenset({"us/mine"}))) as hub:
        named = {"type": "hub", "repository": "us/mine", "revision": "main", "secret": "HUB"}
        ends = []
        for settings_of in ({}, {"hub": hub.address}, {"hub": hub.address, "secrets": {"HUB": hub.token}}):
            node.importing = Importing(replace(node.settings, **settings_of), node.store)
            model = node.asked(**named)
            asyncio.run(node.importing.tend())
            ends.append(node.row(model))
    assert [end[:2] for end in ends] == [("failed", "hub_off"), ("failed", "secret_missing"), ("done", "")], ends
    assert ends[2][4]["commit"] == COMMIT
    assert not list(node.home.glob("fetched/*"))
    assert hub.token not in repr(ends)


@pytest.mark.services
def test_an_upload_is_fetched_by_a_node_that_knows_the_control_plane_and_left_to_such_a_one_at_first(node: Node):
    with upload_server(UploadServer(node.model, "x")) as control:
        model = node.asked(**control.source())
        asyncio.run(node.importing.tend())
        assert node.row(model)[0] == "queued"
        node.conn.execute("UPDATE store.model SET created_at = created_at - interval '1 minute'")
        asyncio.run(node.importing.tend())
        state, reason, text, _, _ = node.row(model)
        assert (state, reason, "FLEXMARL_CONTROL_URL" in text) == ("failed", "upload_unreachable", True)
        node.importing = Importing(replace(node.settings, control_url=control.address), node.store)
        model = node.asked(**control.source())
        asyncio.run(node.importing.tend())
    state, reason, text, digest, _ = node.row(model)
    assert (state, reason) == ("done", ""), text
    allow(ModelRoots((str(node.root),)), str(node.home))
    assert digest == put_model(node.home, str(node.model)).digest
    assert not list(node.home.glob("fetched/*"))


@pytest.mark.services
def test_the_weights_of_an_imported_model_lie_on_its_host_once(node: Node):
    allow(ModelRoots((str(node.root),)), str(node.home))
    stored = put_model(node.home, str(node.model))
    used = sum(path.stat().st_size for path in node.home.rglob("*") if path.is_file())
    source = RegisteredModel(name="mine", digest=stored.digest)
    initial_weights(source, 0, 0)
    tokenizer_of(source, ())
    more = sum(path.stat().st_size for path in node.home.rglob("*") if path.is_file()) - used
    small = sum((node.model / name).stat().st_size for name in FILES if (node.model / name).exists())
    assert small <= more < small + 1000 < stored.bytes


@pytest.mark.services
def test_what_no_run_may_use_fails_by_its_code(node: Node):
    (node.model / "model.safetensors").write_bytes((node.model / "model.safetensors").read_bytes()[:-1])
    for path, code in ((str(node.model), "unreadable_weights"), (str(node.root / "none"), "unreadable_folder")):
        model = node.asked(path=path)
        asyncio.run(node.importing.tend())
        state, reason, text, digest, _ = node.row(model)
        assert (state, reason, digest) == ("failed", code, "")
        assert str(node.root) not in text
    assert LocalTier(node.home, OWNER).claims() == {}


@pytest.mark.services
def test_a_model_that_fits_no_host_is_refused_with_the_figures(node: Node):
    insert = "INSERT INTO store.node (name, address, incarnation, facts) VALUES (%s, 'x:1', 'b', %s)"
    node.conn.execute(insert, ["small", '{"memory_bytes": 1000}'])
    model = node.asked(path=str(node.model))
    asyncio.run(node.importing.tend())
    assert node.row(model)[:2] == ("failed", "too_large")
    assert "the largest host has 0.00 GB of memory" in node.row(model)[2]
    node.conn.execute(insert, ["large", '{"memory_bytes": 1000000000}'])
    model = node.asked(path=str(node.model))
    asyncio.run(node.importing.tend())
    assert node.row(model)[0] == "done", node.row(model)


@pytest.mark.services
def test_a_checkpoint_is_imported_by_its_node_and_a_damaged_one_is_not(node: Node):
    folder = root_of(node.home, 7) / "step-4"
    shutil.copytree(node.model, folder / "speaker")
    write_manifest(folder, {})
    node.conn.execute(
        "INSERT INTO store.checkpoint (run_id, label, step, versions, path, bytes, node, parts) "
        "VALUES (7, 'last', 4, '{}', 'x', 1, 'box', '{}')"
    )

    def promoted() -> UUID:
        model = uuid4()
        source = {"type": "checkpoint", "run": "quiet-otter", "step": 4, "policy": "speaker"}
        model_rows.create(node.conn, model, "default", "mine", source, ("ada", "1"), (7, 4))
        asyncio.run(node.importing.tend())
        return model

    state, _, text, digest, facts = node.row(promoted())
    assert state == "done", text
    assert facts["architecture"] == "llama"
    assert digest in LocalTier(node.home, OWNER).claims()
    (folder / "speaker" / "config.json").write_text("{}")
    state, reason, text, *_ = node.row(promoted())
    assert (state, reason) == ("failed", "checkpoint_damaged")
    assert "speaker/config.json is not what was written" in text
    shutil.rmtree(folder)
    assert node.row(promoted())[:2] == ("failed", "checkpoint_missing")


@pytest.mark.services
@pytest.mark.parametrize(
    ("script", "reason", "said"),
    [
        ("echo oops >&2; exit 1", "fault", "code 1: oops"),
        ("kill -9 $$", "out_of_memory", "ended by signal 9"),
        ("exec sleep 60", "time_limit", "not done after 1 s"),
    ],
)
def test_a_process_that_does_not_import_is_told(node: Node, monkeypatch, tmp_path, script, reason, said):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(import_process.sys, "executable", str(python))
    monkeypatch.setattr(import_process, "LIMIT_S", 1.0)
    model = node.asked(path=str(node.model))
    asyncio.run(node.importing.tend())
    assert node.row(model)[:2] == ("failed", reason)
    assert said in node.row(model)[2]


@pytest.mark.services
def test_a_cancelled_import_is_killed(node: Node, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 60\n")
    python.chmod(0o755)
    monkeypatch.setattr(import_process.sys, "executable", str(python))
    monkeypatch.setattr(import_process, "RENEW_S", 0.2)
    model = node.asked(path=str(node.model))

    async def cancelled() -> None:
        tending = asyncio.create_task(node.importing.tend())
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.05)
        node.conn.execute("UPDATE store.model SET state = 'cancelled'")
        await asyncio.wait_for(tending, 60.0)

    asyncio.run(cancelled())
    assert node.row(model)[0] == "cancelled"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


@pytest.mark.services
def test_a_node_fetches_what_its_devices_need_and_keeps_what_it_imported(node: Node, monkeypatch, tmp_path):
    theirs = tmp_path / "theirs"
    allow(ModelRoots((str(node.root),)), str(theirs))
    digest = put_model(theirs, str(node.model)).digest
    other = LocalTier(theirs, "peer")

    class Peer(Source):
        name = "peer"

        def manifest(self, wanted: str) -> bytes:
            return other.manifest(wanted)

        def fetch(self, wanted: str, chunk: str, room: memoryview) -> None:
            described = other.description(wanted)
            other.read_chunk(wanted, described.chunks.index(chunk), room)

        def delta(self, *_: object) -> None:
            return None

    monkeypatch.setattr(node_models, "elsewhere", lambda *_: Elsewhere([Peer()]))
    wanted = {digest}
    monkeypatch.setattr(model_rows, "held_by", lambda *_: wanted)
    asyncio.run(node.holding.tend())
    mine = LocalTier(node.home, OWNER)
    assert mine.claims().keys() == {digest}
    allow(ModelRoots(), str(node.home))
    made = stored_folder(digest)
    for name in FILES:
        if (node.model / name).exists():
            assert (made / name).read_bytes() == (node.model / name).read_bytes()
    wanted.clear()
    asyncio.run(node.holding.tend())
    assert mine.claims().keys() == {digest}, "young claims may belong to a row that is on its way"
    monkeypatch.setattr(node_models, "GRACE_S", 0.0)
    asyncio.run(node.holding.tend())
    assert mine.claims() == {}


def test_a_model_that_no_host_has_is_told_after_a_while(tmp_path: Path):
    allow(ModelRoots(), str(tmp_path))
    with pytest.raises(UnsupportedModel, match="no host that holds the imported model aaaaaaaaaaaa answered"):
        stored_folder("a" * 64, 0.3)
    with pytest.raises(UnsupportedModel, match="no digest yet"):
        stored_folder("")
    allow(ModelRoots())


def test_equal_folders_have_equal_digests_and_every_file_counts(tmp_path: Path):
    allow(ModelRoots((str(tmp_path),)), str(tmp_path / "home"))
    model = write_chat_model(tmp_path / "mine")
    first = put_model(tmp_path / "home", str(model)).digest
    assert put_model(tmp_path / "home", str(model)).digest == first
    config = json.loads((model / "generation_config.json").read_text())
    (model / "generation_config.json").write_text(json.dumps({**config, "max_length": 9}))
    assert put_model(tmp_path / "home", str(model)).digest != first
    allow(ModelRoots())
