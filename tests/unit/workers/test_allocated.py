"""What the processes of a host that a cluster gave find in their environment: with the settings' file, with a token."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from workers import allocated, settings
from workers.errors import SettingsError

TOKEN = f"fmn_{'k' * 12}.{'s' * 43}"
OURS = {
    "PATH": "/usr/bin:/bin",
    "PYTHONPATH": "/opt/flexmarl:/opt/flexmarl/platform",
    "DATABASE_URL": "postgresql://flexmarl:password@db/flexmarl",
    "REDIS_URL": "redis://:password@broker:6379/0",
    "FLEXMARL_CLUSTER_KEY": "key",
    "FLEXMARL_NODE_TOKEN": TOKEN,
    "FLEXMARL_CONTROL_URL": "http://127.0.0.1:8000",
    "FLEXMARL_VLLM_PYTHON": "/nowhere/python",
}


def given(**changes: Any) -> argparse.Namespace:
    told = {"settings": None, "home": None, "node": "batch-1", "pool": "batch", "job": "7", "devices": 2, "kind": "cpu"}
    return argparse.Namespace(**{**told, "memory_gib": 1, **changes})


def test_a_host_with_a_token_gets_no_secret_of_the_installation(tmp_path: Path) -> None:
    found = allocated.environment_of(None, given(), tmp_path, OURS)
    assert not {"DATABASE_URL", "REDIS_URL", "FLEXMARL_CLUSTER_KEY"} & found.keys()
    assert "FLEXMARL_VLLM_PYTHON" not in found, "the installation's path is none of this host"
    assert found["PYTHONPATH"] == OURS["PYTHONPATH"]
    config = settings.load(found)
    assert config.door is not None
    assert (config.door.token, config.door.url, config.home) == (TOKEN, OURS["FLEXMARL_CONTROL_URL"], tmp_path)
    assert (config.node, config.node_bind, config.place) == ("batch-1", "127.0.0.1:0", "batch-1@7")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"FLEXMARL_NODE_TOKEN": ""}, "FLEXMARL_NODE_TOKEN is not set"),
        ({"FLEXMARL_CONTROL_URL": ""}, "FLEXMARL_CONTROL_URL is not set"),
        ({"FLEXMARL_CONTROL_URL": "http://h:x"}, "must look like https://flexmarl.example.org"),
    ],
)
def test_a_host_that_lacks_its_token_or_the_address_says_so(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        allocated.environment_of(None, given(), tmp_path, {**OURS, **changes})


def test_a_host_that_shares_a_folder_has_what_the_file_says(tmp_path: Path) -> None:
    shared = {**OURS, "DATABASE_URL": "postgresql:///flexmarl?host=/run/pg", "FLEXMARL_HOME": str(tmp_path)}
    ours = {"PATH": OURS["PATH"], "PYTHONPATH": "/opt/other"}
    with allocated.home_of(given(settings="file"), shared) as home:
        found = allocated.environment_of(shared, given(settings="file"), home, ours)
    assert (found["DATABASE_URL"], found["FLEXMARL_HOME"]) == (shared["DATABASE_URL"], f"{tmp_path}/nodes/batch-1")


def test_a_home_that_nobody_chose_goes_with_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocated.tempfile, "tempdir", str(tmp_path))
    with allocated.home_of(given(), None) as home:
        allocated.prepare_home(home, None)
        assert (home.parent, [one.name for one in home.iterdir()]) == (tmp_path, ["logs"])
    assert not home.exists()
    with allocated.home_of(given(home=tmp_path / "chosen"), None) as home:
        allocated.prepare_home(home, None)
    assert (home, home.exists()) == (tmp_path / "chosen" / "batch-1", True)
