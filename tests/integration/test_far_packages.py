"""The sample distribution as an uploaded package on two hosts in networks of their own, two versions side by side.

Each host builds the version that its run plays, from the recorded digests; it reaches the web service and an index of
packages, nothing else.
"""

import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

from flexmarl.store.reads.report import consistency_report
from tests.support.chat_templates import small_chat_model
from tests.support.counting import assert_accounted
from tests.support.far_hosts import WITHIN_S, FarHost, allowed_hosts, far_hosts, resources
from tests.support.far_link import can_be_apart
from tests.support.further_node import eventually
from tests.support.package_files import sample_distribution
from tests.support.system import Api, System

pytestmark = [
    pytest.mark.full,
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not can_be_apart(), reason="networks of their own need root and iproute2"),
]

HOSTS = range(5, 7)
NAME, STEPS = "flexmarl-sample-plugins", 2
ENDED = ("done", "ready", "failed", "cancelled")
SAYS = {"1.0.0": "pick", "2.0.0": "take"}
"""Version -> the word that its prompts begin with."""
BUILDS_WITH = "setuptools>=77"
"""What makes a distribution of its sources; recorded in no build."""


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = tmp_path_factory.mktemp("here") / "home"
    settings = {"FLEXMARL_ALLOWED_HOSTS": allowed_hosts(HOSTS), "FLEXMARL_MODEL_ROOTS": str(home.parent)}
    with System(home, environment=settings) as system:
        yield system


@pytest.fixture(scope="module")
def model(system: System) -> str:
    """The name of a small chat model that the installation imported."""
    folder = small_chat_model(system.home.parent / "model")
    asked = system.api().post("/models", {"name": "small", "source": {"type": "folder", "path": str(folder)}})
    found = eventually(lambda: (m := system.api().get(f"/models/{asked['id']}"))["state"] in ENDED and m)
    assert found["state"] == "done", found["reason_text"]
    return str(found["name"])


@pytest.fixture(scope="module")
def packages(system: System, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Both versions, built on the installation's own host."""
    folder = tmp_path_factory.mktemp("sources")
    later = {f'"{SAYS["1.0.0"]}"': f'"{SAYS["2.0.0"]}"'}
    files = {"1.0.0": sample_distribution(folder), "2.0.0": sample_distribution(folder, "2.0.0", **later)}
    return {version: built(system.api(), file) for version, file in files.items()}


def built(api: Api, file: Path) -> dict[str, Any]:
    url = f"{api.base}/api/v1/packages/files?name={file.name}&project=default"
    headers = {"Authorization": f"Bearer {api.token}", "Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(url, file.read_bytes(), headers), timeout=60) as answer:
        digest = json.load(answer)["digest"]
    source = {"type": "upload", "file": file.name, "digest": digest}
    asked = api.post("/packages", {"project": "default", "source": source})
    found = eventually(lambda: (p := api.get(f"/packages/{asked['id']}"))["state"] in ENDED and p, 300.0)
    if found["reason"] == "index_unreachable":
        pytest.skip("the package index cannot be reached")
    assert found["state"] == "ready", found["reason_text"]
    return found


@contextmanager
def index_of(folder: Path, requirements: list[str]) -> Iterator[int]:
    """Serve distributions as an index of packages does; yield its port."""
    simple = folder / "simple"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder / "files"), *requirements],
        check=True,
    )
    for file in (folder / "files").iterdir():
        own = simple / file.name.split("-")[0].replace("_", "-").lower()
        own.mkdir(parents=True, exist_ok=True)
        file.rename(own / file.name)
    server = ThreadingHTTPServer(("", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def hosts(
    system: System, packages: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[FarHost]]:
    folder = tmp_path_factory.mktemp("apart")
    locked = {f"{one['name']}=={one['version']}" for row in packages.values() for one in row["lock"]}
    others = sorted(one for one in locked if not one.startswith(NAME))
    with index_of(tmp_path_factory.mktemp("index"), [*others, BUILDS_WITH]) as port:

        def index(address: str) -> dict[str, str]:
            return {"PIP_INDEX_URL": f"http://{address}:{port}/simple", "PIP_TRUSTED_HOST": address}

        with far_hosts(system, folder, HOSTS, index) as hosts:
            yield hosts


def spec(model: str, version: str, host: FarHost) -> dict[str, Any]:
    policy = {
        "model": {"type": "registered", "name": model},
        "tuning": {"type": "lora", "rank": 4, "alpha": 8},
        "precision": "fp32",
    }
    return {
        "environment": {
            "type": "package",
            "package": f"{NAME}@{version}",
            "environment": "same_word",
            "options": {"words": 4, "offered": 2},
        },
        "agents": {"left": {"sampling": {"max_tokens": 4}}, "right": {"sampling": {"max_tokens": 4}}},
        "policies": {"left": policy, "right": policy},
        "algorithm": {"entropy": {"start": 0.05}},
        "batch": {"tasks_per_step": 4, "episodes_per_task": 2, "micro_batch_groups": 2, "rollout_groups": 4},
        "evaluation": {"every_steps": 2, "tasks": 4},
        "budget": {"train_steps": STEPS, "target": None},
        "resources": resources(host, host),
    }


def test_two_versions_are_played_side_by_side_on_two_hosts(
    system: System, model: str, packages: dict[str, dict[str, Any]], hosts: list[FarHost]
) -> None:
    api = system.api()
    where = dict(zip(SAYS, hosts, strict=True))
    runs = {version: api.create_run(name=version, spec=spec(model, version, host)) for version, host in where.items()}
    for version, asked in runs.items():
        run = api.finish(asked["id"], WITHIN_S)
        assert (run["status"], run["step"]) == ("completed", STEPS), run["reason_text"]
        with psycopg.connect(system.database_url, autocommit=True) as conn:
            assert [check for check in consistency_report(conn, run["no"]) if not check.ok] == []
            assert_accounted(conn, run["no"])
        shown = api.get(f"/runs/{run['id']}/trajectories?limit=1")["results"][0]
        turns = api.get(f"/runs/{run['id']}/trajectories/{shown['id']}")["turns"]
        assert {turn["role"] for turn in turns} == {"left", "right"}
        said = {word for word in SAYS.values() if all(word in turn["prompt_text"] for turn in turns)}
        assert said == {SAYS[version]}, turns
        there = {folder.name for folder in (where[version].node.home / "packages").iterdir()}
        assert there == {packages[version]["digest"]}, "its own version alone, built there"
