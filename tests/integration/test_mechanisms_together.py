"""Mechanisms that real runs meet together only in presets, with real engines, trainers and services, all runs at once.

- a quarter more groups with more members each, whose tasks wait for a long round (`rollpacker`)
- credit in groups, four steps' of them, four updates a step, surplus that plays on (`areal`)
- trainers that share devices beside one with a device of its own, and a policy on both shared ones (`rlinf_hybrid`)
- pairs of replies of the version before, whose weights are kept and asked again (`one_step_off` with `online_dpo`)

The rows are asked afterwards, and the log of the last one is replayed.
"""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import torch

from flexmarl.contracts.specification.team import FactoryModel
from flexmarl.store.reads.trained_rows import TrainedRow, trained_rows
from tests.support.promised import broken, read
from tests.support.system import MANY_DEVICES, System
from workers.models import architecture_of
from workers.training.blocks import blocks_of
from workers.training.decoder import Decoder, parameter_order
from workers.training.objective import token_scores
from workers.training.packing import pack
from workers.training.parameters import FlatParameters
from workers.training.wire import TrainRow
from workers.transfer import LocalTier

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 3
MIXED: dict[str, Any] = {
    "policies": {"guesser": {"devices": 2}},
    "resources": {"rollout_devices": 2, "training_devices": 3},
    "mechanisms": {"allocation": {"homes": {"guesser": [0, 1], "hinter": [2]}}},
}
RUNS: dict[str, dict[str, Any]] = {"rollpacker": {}, "areal": {}, "rlinf_hybrid": MIXED}
DEVICES = {name: 3 if own else 2 for name, own in RUNS.items()}
TRAINED = """
SELECT l.beside IS NOT NULL OR EXISTS (SELECT 1 FROM store.lease o WHERE o.device_id = l.device_id
  AND o.run_id = l.run_id AND o.use = 'engine'), i.policy, i.t0, i.t1 FROM store.interval i
JOIN store.lease l ON l.id = i.lease_id
WHERE i.run_id = %s AND i.phase IN ('train', 'step') AND l.use = 'trainer'
"""
PLAYED = "SELECT extract(epoch FROM started_at), extract(epoch FROM finished_at) FROM store.episode WHERE run_id = %s"
PAIRS: dict[str, Any] = {
    "algorithm": {
        "loss": {"type": "online_dpo"},
        "advantage": {"type": "best_worst"},
        "entropy": {"start": 0.0},
    }
}
WEIGHTS = "SELECT version, digest FROM store.policy_version WHERE run_id = %s AND policy = 'speaker'"
GANGS = "SELECT count(*) FROM store.command WHERE run_id = %s AND kind = 'join_gang' AND status = 'done'"


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(MANY_DEVICES)


def spec(own: dict[str, Any]) -> dict[str, Any]:
    return own | {
        "environment": {"latency": {"scale_s": 0.02, "sigma": 1.2, "cap_s": 0.5}},
        "batch": {"tasks_per_step": 8, "episodes_per_task": 4, "micro_batch_groups": 2},
        "budget": {"train_steps": STEPS, "target": None},
        "evaluation": {"every_steps": 100, "tasks": 2},
        "checkpoints": {"every_steps": 100},
    }


def trained_while_played(conn: psycopg.Connection, run_no: int) -> tuple[set[str], set[tuple[str, bool]]]:
    """Return who was trained while an episode played, and on which kind of device each was trained."""
    work = conn.execute(TRAINED, [run_no]).fetchall()
    played = [(float(a), float(b)) for a, b in conn.execute(PLAYED, [run_no]).fetchall()]
    beside = {name for _, name, t0, t1 in work if any(min(t1, b) - max(t0, a) > 0.002 for a, b in played)}
    return beside, {(name, shared) for shared, name, _, _ in work}


def test_what_presets_combine_keeps_every_promise(system: System) -> None:
    api = system.api()
    runs = {
        name: api.create_run(name=name, template="hot_cold", preset=name, spec=spec(own)) for name, own in RUNS.items()
    }
    ended = {name: api.finish(run["id"], 400) for name, run in runs.items()}
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        kept = {name: read(conn, run["no"]) for name, run in ended.items()}
        assert {name: broken(ended[name], own) for name, own in kept.items()} == {name: [] for name in RUNS}
        no = ended["rlinf_hybrid"]["no"]
        beside, places = trained_while_played(conn, no)
        gangs = conn.execute(GANGS, [no]).fetchone()
    assert {name: run["devices"] for name, run in ended.items()} == DEVICES
    assert kept["rollpacker"].surplus["groups/deferred"] > 0
    assert ended["rollpacker"]["progress"]["episodes_cancelled"] > 0
    assert max(kept["areal"].lags.values()) > 0
    assert kept["areal"].surplus["groups/handed_on"] > 0
    assert places == {("guesser", True), ("hinter", False)}
    assert beside == {"hinter"}, "a device of its own trains while episodes play, a shared one never"
    assert kept["rlinf_hybrid"].turns >= 2 * STEPS
    assert gangs is not None
    assert gangs[0] >= STEPS, "both ranks were there in every step"
    assert "equals the stored rows exactly" in system.manage("replay", str(no))


def said_by(weights: dict[str, torch.Tensor], model: FactoryModel, row: TrainedRow) -> torch.Tensor:
    """Return the log-probabilities that weights give to a row's tokens."""
    arrays, words = row.row.arrays, len(weights["model.embed_tokens.weight"])
    flat = FlatParameters(weights, parameter_order(weights.keys()), "fp32", "cpu", frozen=True)
    given = TrainRow(
        arrays.prompt_ids().tobytes(), arrays.response_ids().tobytes(), arrays.response_logprobs().tobytes(),
        arrays.allowed_ids().tobytes(), row.row.temperature, [1.0], 1.0,
    )  # fmt: skip
    [batch] = pack(blocks_of([given], lambda tokens: (1.0, 1.0), words), words, 4096)
    with torch.no_grad():
        return token_scores(Decoder(flat, architecture_of(model)), batch)[0][0]


@pytest.mark.full
def test_preferences_are_learned_from_pairs_of_the_version_before(system: System) -> None:
    """Online DPO as in Asynchronous RLHF: while a step is taken, the pairs of the next one are played."""
    api = system.api()
    asked = spec(PAIRS)
    asked["batch"]["rollout_groups"] = 2
    run = api.create_run(name="pairs", template="reference_game", preset="one_step_off", spec=asked)
    run = api.finish(run["id"], 300)
    with psycopg.connect(system.database_url, autocommit=True) as conn:
        kept, rows = read(conn, run["no"]), list(trained_rows(conn, run["no"]))
        digests = dict(conn.execute(WEIGHTS, [run["no"]]).fetchall())
    assert broken(run, kept) == []
    assert kept.lags == {"speaker": 1, "listener": 1}
    pairs: dict[tuple[str, int], list[TrainedRow]] = {}
    for row in rows:
        if any(row.row.advantages):
            pairs.setdefault((row.policy, row.row.draw), []).append(row)
    assert {tuple(sorted(one.row.advantages[0] for one in pair)) for pair in pairs.values()} == {(-1.0, 1.0)}
    for pair in pairs.values():
        worse, better = sorted(pair, key=lambda one: one.row.advantages)
        assert worse.episode.team_score < better.episode.team_score
    late = [row for pair in pairs.values() for row in pair if row.row.segments[0] == row.version - 2]
    assert {row.policy for row in late} == {"speaker", "listener"}, "replies of version v - 1 train version v"
    plane, model = LocalTier(system.home), FactoryModel.model_validate(run["spec"]["policies"]["speaker"]["model"])
    for row in [row for row in late if row.policy == "speaker"][:8]:
        told = torch.from_numpy(row.row.arrays.response_logprobs().copy())
        own, later = (plane.get(digests[version]) for version in (row.version - 2, row.version - 1))
        assert torch.allclose(said_by(own, model, row), told, atol=1e-4)
        assert not torch.allclose(said_by(later, model, row), told, atol=1e-4), "the policy has moved on since"
