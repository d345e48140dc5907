"""The environment of workers is read once, with refusals that name the variable."""

import pytest

from flexmarl.host.exits import CONFIGURATION
from flexmarl.store.control.nodes import DeviceRow
from workers import run, settings
from workers.containers import ContainerSettings
from workers.errors import SettingsError
from workers.programs import device_environment

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
    gpu = DeviceRow("box.gpu1", "box", "cuda", 1, "default", {"cuda_index": 0})
    assert device_environment([gpu], 1)["CUDA_VISIBLE_DEVICES"] == "0"
    further = DeviceRow("box.gpu3", "box", "cuda", 3, "default", {"cuda_index": 3})
    assert device_environment([gpu, further], 1)["CUDA_VISIBLE_DEVICES"] == "0,3"
    cpu = DeviceRow("box.cpu1", "box", "cpu", 1, "default", {})
    assert device_environment([cpu], 2)["CUDA_VISIBLE_DEVICES"] == ""
    assert device_environment([cpu, cpu], 2)["OMP_NUM_THREADS"] == "2"
    assert device_environment([cpu], 2)["THP_MEM_ALLOC_ENABLE"] == "1", "fresh memory is touched in large pages"


def test_external_hosts_and_secrets_come_by_name_and_no_other_secret_is_among_them():
    env = COMPLETE | {
        "FLEXMARL_EXTERNAL_HOSTS": "api.example.org, 127.0.0.1:8000",
        "FLEXMARL_EXTERNAL_SECRET_OPEN": "sk-1",
        "FLEXMARL_SECRET_KEY": "the platform's own",
    }
    loaded = settings.load(env)
    assert loaded.external_hosts == {"api.example.org", "127.0.0.1:8000"}
    assert loaded.secrets == {"OPEN": "sk-1"}
    assert "sk-1" not in repr(loaded)
    assert settings.load(COMPLETE).external_hosts == frozenset(), "nobody is asked unless an operator says so"


def test_what_hosts_do_with_containers_is_said_by_their_operator():
    assert settings.load(COMPLETE).containers == ContainerSettings("auto", ())
    told = {"FLEXMARL_CONTAINER_ENGINE": "podman --runtime crun", "FLEXMARL_CONTAINER_IMAGES": "ghcr.io/acme, a.b/c/"}
    assert settings.load({**COMPLETE, **told}).containers == ContainerSettings(
        "podman --runtime crun", ("ghcr.io/acme", "a.b/c/")
    )
    for name, value in (("FLEXMARL_CONTAINER_ENGINE", 'podman "'), ("FLEXMARL_CONTAINER_IMAGES", "*")):
        with pytest.raises(SettingsError, match=f"{name}.*such as"):
            settings.load({**COMPLETE, name: value})


def test_classes_of_devices_are_declared_by_name_and_a_wrong_one_is_named():
    loaded = settings.load({**COMPLETE, "FLEXMARL_DEVICE_CLASSES": "H100=prefill, H20=decode"})
    assert loaded.device_classes == {"H100": "prefill", "H20": "decode"}
    with pytest.raises(SettingsError, match="FLEXMARL_DEVICE_CLASSES: 'H100=fast' is not of the form NAME=CLASS"):
        settings.load({**COMPLETE, "FLEXMARL_DEVICE_CLASSES": "H100=fast"})


def test_a_rollout_worker_may_leave_rewards_to_others_and_a_reward_worker_may_not(monkeypatch, capsys):
    assert settings.load(COMPLETE).reward_tasks == 32
    assert settings.load({**COMPLETE, "FLEXMARL_REWARD_TASKS": "0"}).reward_tasks == 0
    with pytest.raises(SettingsError, match="FLEXMARL_REWARD_TASKS is 'many'; it must be a whole number from 0"):
        settings.load({**COMPLETE, "FLEXMARL_REWARD_TASKS": "many"})
    for name, value in {**COMPLETE, "FLEXMARL_REWARD_TASKS": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["workers.run", "--role", "reward"])
    monkeypatch.setattr("workers.reporting.configure", lambda name: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == CONFIGURATION
    assert "reward worker: FLEXMARL_REWARD_TASKS is '0'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("DATABASE_URL", "mysql://x", "must look like postgresql://user:password@host:5432/database"),
        ("DATABASE_URL", "postgresql://host:many/x", "must look like postgresql://"),
        ("DATABASE_URL", "postgresql://one,two/x", "end it with ?target_session_attrs=read-write"),
        ("REDIS_URL", "localhost:6379", "must look like redis://:password@host:6379/0"),
        ("FLEXMARL_NODE_BIND", "7100", "'7100'; it must be host:port, such as 127.0.0.1:0"),
        ("FLEXMARL_NODE_BIND", "10.0.0.7:99999", "it must be host:port"),
        ("FLEXMARL_VLLM_PYTHON", "/nowhere/bin/python", "must name an interpreter that can be run, or be left out"),
    ],
)
def test_a_wrong_value_is_told_with_the_rule_and_a_legal_one(name, value, told):
    with pytest.raises(SettingsError, match=name) as refused:
        settings.load({**COMPLETE, name: value})
    assert told in str(refused.value)
    assert "password" not in value or value not in str(refused.value)
