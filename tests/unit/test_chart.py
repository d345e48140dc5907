"""The chart, installed by Helm itself: what it makes is what Kubernetes takes, and runs what the product has."""

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.support import helm_cluster as clusters
from tests.support.deployed import CHART, HOME, ROOT, commands, containers, known_settings
from tests.support.helm_cluster import HelmCluster, helm, helm_cluster
from workers.allocated import SHARED, STOP_S

pytestmark = pytest.mark.skipif(bool(clusters.MISSING), reason=clusters.MISSING)

Shown = dict[str, Any]
ADDRESSES = {"databaseUrl": "postgresql://flexmarl:word@db:5432/flexmarl", "redisUrl": "redis://:word@broker:6379/0"}
EVERYTHING = {
    "secret": {"existing": "ours"},
    "image": {"repository": "registry.example.org/flexmarl", "pullSecrets": ["registry"]},
    "settings": {"FLEXMARL_KEEP_SAMPLES_DAYS": "7"},
    "allowedHosts": ["other.example.org"],
    "trustedProxies": ["10.244.0.0/16"],
    "ingress": {"enabled": True, "className": "nginx", "host": "flexmarl.example.org", "tlsSecret": "certificate"},
    "provide": {"enabled": True, "namespaces": ["team-a", "team-b"], "nodeTokens": True},
    "hosts": {"replicas": 2, "pool": "plays", "rolloutWorkers": 2},
    "rolloutWorkers": {"replicas": 1},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "a", "operator": "Exists"}],
}
LEAST = {"secret": ADDRESSES}
OF_THE_SECRET = {"FLEXMARL_SECRET_KEY", "FLEXMARL_CLUSTER_KEY", "FLEXMARL_TOKEN_PEPPER", "DATABASE_URL", "REDIS_URL"}
MAY_BE_IN_THE_SECRET = {"FLEXMARL_EXCHANGE_KEY"}
OF_A_PROCESS = {
    "FLEXMARL_HOME", "FLEXMARL_PLACE", "FLEXMARL_HEARTBEAT_FD", "FLEXMARL_NODE_TOKEN", "FLEXMARL_ADVERTISE_HOST",
    "FLEXMARL_GATEWAY_BIND", "DJANGO_SETTINGS_MODULE",
}  # fmt: skip
"""Settings that no value of the chart gives: those of the image, and those that differ between processes."""
REFUSED: dict[str, tuple[Shown, str]] = {
    "no addresses": ({}, "secret.databaseUrl must be postgresql://"),
    "no broker": ({"secret": {"databaseUrl": ADDRESSES["databaseUrl"]}}, "secret.redisUrl must be redis://"),
    "an address": ({"secret": {**ADDRESSES, "redisUrl": "broker:6379"}}, "/secret/redisUrl"),
    "a number": ({**LEAST, "web": {"replicas": 0}}, "/web/replicas"),
    "a name": ({**LEAST, "drivers": {"replicas": 2}}, "drivers"),
    "a setting": ({**LEAST, "settings": {"FLEXMARL_KEEP_SAMPLE_DAYS": "7"}}, "FLEXMARL_KEEP_SAMPLE_DAYS"),
    "its value": ({**LEAST, "settings": {"FLEXMARL_KEEP_SAMPLES_DAYS": 7}}, "/settings/FLEXMARL_KEEP_SAMPLES_DAYS"),
    "root": ({**LEAST, "runAsUser": 0}, "/runAsUser"),
    "no name": ({**LEAST, "ingress": {"enabled": True}}, "ingress.host must name the service"),
    "memory": ({**LEAST, "web": {"resources": {"limits": {"memory": "2 GB"}}}}, "/web/resources/limits/memory"),
}


def call(do: str, values: Shown) -> Shown:
    return {"do": do, "chart": str(CHART), "values": values}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[HelmCluster, list[Shown]]]:
    """What Helm said of the chart and of wrong values, and the cluster with all parts of it."""
    folder = tmp_path_factory.mktemp("helm")
    wrong = [call("install", values) for values, _ in REFUSED.values()]
    with helm_cluster(folder) as cluster:
        answers = helm(folder, call("lint", {}), *wrong, call("install", EVERYTHING))
        yield cluster, answers


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HelmCluster]:
    """A cluster in which the chart made its Secret, and was upgraded with another address."""
    folder = tmp_path_factory.mktemp("helm")
    moved = {"secret": {**ADDRESSES, "databaseUrl": ADDRESSES["databaseUrl"].replace("db", "other")}}
    with helm_cluster(folder) as cluster:
        answers = helm(folder, call("install", LEAST), call("upgrade", moved))
        assert [one for one in answers if "error" in one] == []
        yield cluster


def test_lint_finds_no_fault(everything: tuple[HelmCluster, list[Shown]]) -> None:
    found = everything[1][0]["result"]
    assert found["TotalChartsLinted"] == 1
    assert [one for one in found["Messages"] or () if one["Severity"] > 1] == []  # 1: a chart may have an icon


@pytest.mark.parametrize(("number", "words"), [*enumerate((words for _, words in REFUSED.values()), 1)], ids=[*REFUSED])
def test_wrong_values_are_refused_with_their_name(
    everything: tuple[HelmCluster, list[Shown]], number: int, words: str
) -> None:
    assert words in everything[1][number]["error"]


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_kubernetes_takes_what_is_made(everything: tuple[HelmCluster, list[Shown]], version: str) -> None:
    cluster, answers = everything
    assert "error" not in answers[-1], answers[-1]
    kinds = [one["kind"] for one in cluster.kept()]
    assert {kind for known in clusters.KINDS.values() for kind in known.values()} - set(kinds) == {
        "ConfigMap", "Pod", "Secret"
    }  # fmt: skip
    for one in cluster.kept():
        kubernetes_validate.validate(one, version, strict=True)


def test_processes_are_those_of_the_product(everything: tuple[HelmCluster, list[Shown]]) -> None:
    known, found = commands(), {name: one["args"] for _, name, one in _containers(everything[0])}
    manage = ["python", "manage.py"]
    assert found == {
        **{name: known[name] for name in ("web", "driver", "simulations", "node", "device-worker", "rollout-worker")},
        **{f"rollout-worker-{number}": known["rollout-worker"] for number in (1, 2)},
        "provide": [*manage, "provide"],
        "prepare": [*manage, "prepare"],
        "files-of-pages": [*manage, "collectstatic", "--noinput", "-v", "0"],
        "folders": found["folders"],
    }
    assert set(SHARED) < set(found["folders"][-1].split())
    assert list(ROOT.glob("platform/flexmarl/controlplane/*/management/commands/provide.py"))


def test_settings_of_the_chart_exist_and_all_others_may_be_given(everything: tuple[HelmCluster, list[Shown]]) -> None:
    given = {variable["name"] for _, _, one in _containers(everything[0]) for variable in one.get("env", ())}
    assert given <= known_settings()
    schema = json.loads((CHART / "values.schema.json").read_text())
    free = set(schema["properties"]["settings"]["propertyNames"]["enum"])
    own = given - set(EVERYTHING["settings"])
    assert free == known_settings() - own - OF_THE_SECRET - MAY_BE_IN_THE_SECRET - OF_A_PROCESS


def test_pods_may_do_little_and_end_in_time(everything: tuple[HelmCluster, list[Shown]]) -> None:
    for manifest in everything[0].kept():
        pod = manifest.get("spec", {}).get("template", {}).get("spec")
        if pod is None:
            continue
        name = manifest["metadata"]["name"]
        assert pod["enableServiceLinks"] is False, name
        assert pod["securityContext"]["runAsNonRoot"], name
        assert pod["automountServiceAccountToken" if "serviceAccountName" not in pod else "serviceAccountName"] in {
            False, "flexmarl"
        }, name  # fmt: skip
        if manifest["kind"] != "Job":
            assert pod["terminationGracePeriodSeconds"] > STOP_S, name
    for name, container, one in _containers(everything[0]):
        limits = one["securityContext"]
        assert (limits["readOnlyRootFilesystem"], limits["allowPrivilegeEscalation"]) == (True, False), container
        assert limits["capabilities"] == {"drop": ["ALL"]}, container
        assert {"cpu", "memory"} <= set(one["resources"]["requests"]), (name, container)
        assert one["envFrom"] == [{"secretRef": {"name": "ours"}}], container


def test_hosts_have_a_home_of_their_own_and_share_what_hosts_share(everything: tuple[HelmCluster, list[Shown]]) -> None:
    for kind, name in (("StatefulSet", "flexmarl-hosts"), ("Deployment", "flexmarl-rollout")):
        _, (_, one) = list(containers(everything[0].one(kind, name)))[:2]
        mounts = {mount["mountPath"]: mount for mount in one["volumeMounts"]}
        shared = {path for path, mount in mounts.items() if mount.get("subPath")}
        assert shared == {f"{HOME}/{folder}" for folder in SHARED}
        home = mounts[str(HOME)]
        assert home["name"] == "own" or home["subPathExpr"] == "nodes/$(FLEXMARL_NODE)"


def test_probes_ask_what_answers(everything: tuple[HelmCluster, list[Shown]]) -> None:
    _, (_, web) = list(containers(everything[0].one("Deployment", "flexmarl-web")))
    probes = [web[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert probes == [{"path": "/healthz", "port": "http"}] * 3
    assert web["ports"] == [{"name": "http", "containerPort": 8000}]
    assert '"/healthz"' in (ROOT / "platform/flexmarl/controlplane/telemetry/health/probes.py").read_text()


def test_the_provider_may_do_what_its_page_says(everything: tuple[HelmCluster, list[Shown]]) -> None:
    page = (ROOT / "docs/clusters.md").read_text()
    written = re.search(r"```yaml\n(apiVersion: rbac.*?)```.*?```yaml\n(- .*?)```", page, re.DOTALL)
    assert written is not None
    rules = [*yaml.safe_load(written[1])["rules"], *yaml.safe_load(written[2])]
    roles = [one for one in everything[0].kept() if one["kind"] == "Role"]
    assert sorted(one["metadata"]["namespace"] for one in roles) == ["team-a", "team-b"]
    assert [one["rules"] for one in roles] == [rules] * 2
    bound = [one for one in everything[0].kept() if one["kind"] == "RoleBinding"]
    subject = {"kind": "ServiceAccount", "name": "flexmarl", "namespace": clusters.NAMESPACE}
    assert [one["subjects"] for one in bound] == [[subject]] * 2


def test_migrations_come_first_with_the_secret_that_they_need(upgraded: HelmCluster) -> None:
    order = [f"{one['kind']} {one['metadata']['name']}" for one in upgraded.made]
    first = ["Secret flexmarl", "Job flexmarl-prepare"]
    assert (order[:2], order[-2:]) == (first, first)
    assert {"Deployment flexmarl-web", "Deployment flexmarl-driver", "PersistentVolumeClaim flexmarl-home"} <= set(
        order
    )
    assert not [name for name in order if re.search("provide|Role|Ingress|hosts|rollout", name)]


def test_an_upgrade_keeps_the_keys_and_takes_the_address(upgraded: HelmCluster) -> None:
    first, last = [one["data"] for one in upgraded.made if one["kind"] == "Secret"]
    keys = sorted(OF_THE_SECRET - {"DATABASE_URL", "REDIS_URL"})
    assert len({first[name] for name in keys}) == 3
    assert min(len(base64.b64decode(first[name])) for name in keys) >= 48
    assert {name: last[name] for name in keys} == {name: first[name] for name in keys}
    assert base64.b64decode(last["DATABASE_URL"]).decode().endswith("@other:5432/flexmarl")


def _containers(cluster: HelmCluster) -> list[tuple[str, str, Shown]]:
    found = [(one["metadata"]["name"], *pair) for one in cluster.kept() for pair in containers(one)]
    assert len(found) > 10
    return found
