"""A model is imported on one host and trained on another; its checkpoint becomes a model that a third run begins with.

The whole system with a second node beside it. The two share nothing: each has a home of its own, and only one of them
may read the folder that the model comes from. Weights go between them by digest.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.support.chat_templates import small_chat_model
from tests.support.further_node import eventually, further_node, known_nodes, ready_nodes
from tests.support.system import Api, System
from workers.models.stored import OWNER
from workers.transfer import LocalTier

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.timeout(1500)]

CARD = "---\nlicense: apache-2.0\n---\nA model of random weights.\n"


def spec(model: dict[str, Any]) -> dict[str, Any]:
    policy = {
        "model": {"type": "registered", **model},
        "tuning": {"type": "lora", "rank": 4, "alpha": 8},
        "precision": "fp32",
    }
    return {
        "policies": {"solver": policy, "reviser": policy},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4},
        "environment": {"type": "sums", "reply_tokens": 6},
        # Random weights hardly ever say a right sum: what moves them is the bonus.
        "algorithm": {"entropy": {"start": 0.05}},
        "evaluation": {"every_steps": 2, "tasks": 4},
        "checkpoints": {"every_steps": 2},
        "budget": {"train_steps": 2, "target": None},
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model below the folder that only one of the nodes may read."""
    made = small_chat_model(tmp_path_factory.mktemp("registered") / "mine")
    (made / "README.md").write_text(CARD)
    return made


@pytest.fixture(scope="module")
def system(installations: Callable[[int], System]) -> System:
    return installations(0)


@pytest.fixture(scope="module")
def north(system: System) -> str:
    """Return the name of the system's own node."""
    [node] = eventually(lambda: len(found := ready_nodes(system.api())) == 1 and found)  # a former test's may be ending
    return str(node["name"])


@pytest.fixture(scope="module")
def south(system: System, north: str) -> Iterator[Path]:
    """Start a node named south beside the system's own; its home."""
    home: Path = system.home.parent / "south"
    with further_node(system, home, {"FLEXMARL_MODEL_ROOTS": ""}):
        yield home


@pytest.fixture(scope="module")
def api(system: System, north: str, south: Path) -> Iterator[Api]:
    api = known_nodes(system.api(), north, "south")
    yield api
    only_on(api, north)


def only_on(api: Api, name: str) -> None:
    """Let new leases lie on one node alone."""
    for node in api.get("/nodes")["results"]:
        action = "enable" if node["name"] == name else "cordon"
        if (node["state"] == "ready") != (action == "enable"):
            body = {} if action == "enable" else {"note": "the other one"}
            where, version = f"/nodes/{node['name']}", node["version"]
            api.call("POST", f"{where}/actions/{action}", body, If_Match=f'W/"{version}"')


def imported(api: Api, asked: dict[str, Any]) -> dict[str, Any]:
    ended = ("done", "failed", "cancelled")
    found = eventually(lambda: (m := api.get(f"/models/{asked['id']}"))["state"] in ended and m)
    assert found["state"] == "done", (found["reason"], found["reason_text"])
    return found


def finished(api: Api, name: str, model: dict[str, Any]) -> dict[str, Any]:
    run = api.finish(api.create_run(name=name, template="chat_sums", spec=spec(model))["id"], 400)
    assert (run["status"], run["step"]) == ("completed", 2), run["reason_text"]
    return run


def test_a_model_goes_from_a_folder_through_two_hosts_and_out_again(
    api: Api, system: System, north: str, south: Path, model: Path, tmp_path: Path
) -> None:
    source = {"type": "folder", "path": str(model)}
    asked = api.post("/models", {"name": "mine", "source": source})
    first = imported(api, asked)
    assert (first["architecture"], first["licence"]) == ("llama", "apache-2.0")
    weights = load_file(model / "model.safetensors")
    shutil.rmtree(model)

    only_on(api, "south")
    run = finished(api, "trains far away", {"name": "mine"})
    assert run["spec"]["policies"]["solver"]["model"]["digest"] == first["digest"]
    assert first["digest"] in LocalTier(south, OWNER).claims()
    where = f"/runs/{run['id']}/checkpoints/2"
    assert (api.get(where)["state"], api.get(where)["node"]) == ("whole", "south")
    second = imported(api, api.post(f"{where}/actions/promote", {"name": "trained", "policy": "solver"}))
    assert (second["architecture"], second["licence"], second["parameters"]) == (
        "llama", "apache-2.0", first["parameters"],
    )  # fmt: skip
    assert second["digest"] != first["digest"]
    [made] = api.get(f"/runs/{run['id']}/lineage")["models"]
    assert (made["name"], made["step"], made["policy"], made["digest"]) == ("trained", 2, "solver", second["digest"])

    only_on(api, north)
    finished(api, "goes on at home", {"name": "trained", "version": 1})
    assert second["digest"] in LocalTier(system.home, OWNER).claims()

    out = api.download(f"/models/{first['id']}/archive", tmp_path / "first")
    again = load_file(out / "mine" / "model.safetensors")
    assert again.keys() == weights.keys()
    assert all(torch.equal(again[name], weights[name]) for name in weights)
    assert (out / "mine" / "README.md").read_text() == CARD
    merged = api.download(f"{where}/archive?policy=solver&form=merged", tmp_path / "merged")
    trained = api.download(f"/models/{second['id']}/archive", tmp_path / "second")
    ours = load_file(merged / "solver" / "model.safetensors")
    theirs = load_file(trained / "trained" / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    for folder in (out / "mine", trained / "trained"):
        loaded(folder)


def loaded(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    words = AutoTokenizer.from_pretrained(folder)
    prompt = words.apply_chat_template([{"role": "user", "content": "2+3?"}], return_tensors="pt", return_dict=True)
    assert torch.isfinite(AutoModelForCausalLM.from_pretrained(folder)(**prompt).logits).all()
