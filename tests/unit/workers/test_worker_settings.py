"""The environment of workers is read once, with refusals that name the variable."""

import pytest

from flexmarl.store.nodes import Device
from workers import settings
from workers.errors import SettingsError
from workers.hosting import device_environment

COMPLETE = {
    "DATABASE_URL": "postgresql://x",
    "REDIS_URL": "redis://x",
    "FLEXMARL_HOME": "/tmp/home",
    "FLEXMARL_CLUSTER_KEY": "key",
}


def test_defaults():
    loaded = settings.load(COMPLETE)
    assert (loaded.child_threads, loaded.child_host, loaded.rollout_pool) == (1, "127.0.0.1", "default")
    assert loaded.node
    assert loaded.log_dir is None


@pytest.mark.parametrize("name", sorted(COMPLETE))
def test_a_missing_variable_is_named(name):
    with pytest.raises(SettingsError, match=name):
        settings.load({key: value for key, value in COMPLETE.items() if key != name})


def test_a_wrong_number_is_named_with_what_is_legal():
    with pytest.raises(SettingsError, match="FLEXMARL_CHILD_THREADS is '0'; it must be a whole number from 1"):
        settings.load({**COMPLETE, "FLEXMARL_CHILD_THREADS": "0"})


def test_a_child_sees_its_device_only():
    gpu = Device("box.gpu1", "box", "cuda", 1, "default", {"cuda_index": 0})
    assert device_environment(gpu, 1)["CUDA_VISIBLE_DEVICES"] == "0"
    cpu = Device("box.cpu1", "box", "cpu", 1, "default", {})
    assert device_environment(cpu, 2)["CUDA_VISIBLE_DEVICES"] == ""
    assert device_environment(cpu, 2)["OMP_NUM_THREADS"] == "2"
