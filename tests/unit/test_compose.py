"""The compose file runs what `manage.py up` runs, with settings that exist; the image has what they need."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deployed import CHECKOUT, COMPOSE, DEPLOY, HOME, ROOT, commands, compose, known_settings

SERVICES = compose()["services"]
OURS = {name: one for name, one in SERVICES.items() if name not in {"postgres", "valkey"}}
PRODUCT = {name: one for name, one in OURS.items() if name != "prepare"}
STOP_S = 12
"""Longest that a worker may take to leave: see workers/allocated.py."""


def secrets(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    script = folder / "secrets"
    script.write_text((DEPLOY / "compose/secrets").read_text())
    return subprocess.run(["sh", str(script), *words], capture_output=True, text=True, check=False)


def variables(path: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in path.read_text().splitlines())


def test_services_are_the_processes_of_up_with_its_commands() -> None:
    assert {name: one["command"] for name, one in PRODUCT.items()} == commands()


def test_settings_of_services_exist() -> None:
    given = {name for one in OURS.values() for name in one.get("environment", {})}
    assert len(given) >= 3, "the file is read"
    assert given <= known_settings()


def test_processes_begin_behind_migrations_of_servers_that_answer() -> None:
    ready = {"postgres": "service_healthy", "valkey": "service_healthy"}
    for name, one in PRODUCT.items():
        found = {on: rule["condition"] for on, rule in one["depends_on"].items()}
        assert found == {**ready, "prepare": "service_completed_successfully"}, name
        assert one["restart"] == "unless-stopped"
        assert int(one["stop_grace_period"].removesuffix("s")) > STOP_S
    assert {on: rule["condition"] for on, rule in OURS["prepare"]["depends_on"].items()} == ready
    assert OURS["prepare"]["restart"] == "no"


def test_one_port_is_open_to_the_host_alone() -> None:
    opened = {name: one["ports"] for name, one in SERVICES.items() if "ports" in one}
    assert opened == {"web": ["${FLEXMARL_PUBLISH:-127.0.0.1:8000}:8000"]}
    assert not any(one.get("network_mode") or one.get("privileged") for one in SERVICES.values())


def test_processes_may_write_to_the_home_alone() -> None:
    for name, one in OURS.items():
        assert (one["read_only"], one["cap_drop"], one["security_opt"]) == (
            True, ["ALL"], ["no-new-privileges:true"]
        ), name  # fmt: skip
        assert one["volumes"] == [f"home:{HOME}"]


def test_the_file_holds_no_secret() -> None:
    assert not re.search(r"(PASSWORD|_KEY|PEPPER)\s*[:=]\s*\S", COMPOSE.read_text().replace("$$VALKEY_PASSWORD", ""))


def test_secrets_are_made_once_for_their_owner_and_fit_together(tmp_path: Path) -> None:
    assert secrets(tmp_path, "flexmarl.example.org").returncode == 0
    ours, servers = variables(tmp_path / "flexmarl.env"), variables(tmp_path / "services.env")
    assert set(ours) <= known_settings()
    assert f":{servers['POSTGRES_PASSWORD']}@postgres:5432/" in ours["DATABASE_URL"]
    assert f":{servers['VALKEY_PASSWORD']}@valkey:6379/" in ours["REDIS_URL"]
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("flexmarl.env", "services.env")} == {0o600}
    words = [ours[name] for name in ours if name.endswith(("_KEY", "_PEPPER"))]
    assert len({*words, *servers.values()}) == 5
    assert min(map(len, words)) == 48
    subnet = compose()["networks"]["inside"]["ipam"]["config"][0]["subnet"]
    assert ours["FLEXMARL_TRUSTED_PROXIES"] == subnet.replace(".0/24", ".1")
    again = secrets(tmp_path, "flexmarl.example.org")
    assert (again.returncode, "is kept" in again.stderr) == (1, True)
    assert variables(tmp_path / "flexmarl.env") == ours


def test_settings_that_secrets_writes_are_read(tmp_path: Path) -> None:
    secrets(tmp_path, "flexmarl.example.org")
    environment = {
        **variables(tmp_path / "flexmarl.env"),
        "FLEXMARL_HOME": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.production",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
        "PATH": os.environ["PATH"],
    }
    for module in ("flexmarl.controlplane.settings.check", "workers.settings"):
        read = subprocess.run(
            [sys.executable, "-m", module], env=environment, capture_output=True, text=True, check=False
        )
        assert read.returncode == 0, read.stderr


@pytest.mark.parametrize("name", ["", "a b", "x;y"])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    refused = secrets(tmp_path, name)
    assert (refused.returncode, "flexmarl.example.org" in refused.stderr) == (2, True)


def test_the_image_has_the_settings_paths_and_files_of_the_product() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    variables = dict(re.findall(r"([A-Z_]+)=(\S+)", text[text.index("ENV PATH") : text.index("USER ")]))
    theirs = {name for name in variables if name.startswith(("FLEXMARL_", "DJANGO_"))}
    assert theirs <= known_settings()
    assert variables["FLEXMARL_HOME"] == str(HOME)
    assert variables["PYTHONPATH"] == f"{CHECKOUT}:{CHECKOUT / 'platform'}"
    assert f"WORKDIR {CHECKOUT}" in text
    assert re.search(r"^USER [1-9]", text, re.MULTILINE)
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert [name for name in kept if not (ROOT / name).exists()] == []
    assert {"platform", "webui", "workers", "migrations", "manage.py"} <= set(kept)
