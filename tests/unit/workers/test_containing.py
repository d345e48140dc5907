"""What is told of containers, without an engine: which images may be pulled, what an engine's words mean."""

from pathlib import Path

import pytest

from workers.containers import ContainerSettings, NoEngine, find_engine
from workers.packages.inside import containing
from workers.packages.inside.containing import ContainerJob, fault_of, ran_out

AGENT = ContainerJob(["podman"], "/var/lib/store", "a" * 64, "/testbed", 1.0, 64)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("ghcr.io/acme/agent:1", True),
        ("ghcr.io/acme@sha256:" + "a" * 64, True),
        ("ghcr.io/acme", True),
        ("ghcr.io/acme-evil/agent:1", False),
        ("ghcr.io/acm", False),
        ("quay.io/one/agent", True),
        ("quay.io/oneself/agent", False),
        ("docker.io/library/python:3.12", True),
        ("docker.io/library/python:3.12.1", False),
    ],
)
def test_a_beginning_of_a_name_ends_where_a_part_does(name: str, may: bool) -> None:
    pulled = ("ghcr.io/acme", "quay.io/one/", "docker.io/library/python:3.12")
    assert ContainerSettings(pulled=pulled).pulls(name) is may
    assert not ContainerSettings().pulls(name), "nothing is pulled unless an operator says so"


@pytest.mark.parametrize(
    ("word", "said", "reason"),
    [
        (
            "init",
            'Error: runc create failed: exec: "mini": executable file not found in $PATH',
            "unknown command: its image has no such program: 'mini'",
        ),
        ("cp", "Error: \"/testbed/\" could not be found on container files: no such file or directory",
         "workspace: its image has no folder /testbed"),
        ("create", "Error: setrlimit: Operation not permitted", "container: setrlimit: Operation not permitted"),
        ("create", "", "container: it said nothing"),
        ("create", f"Error: {containing.ENGINE}/root: no space left", "container: /root: no space left"),
    ],
)  # fmt: skip
def test_what_an_engine_says_is_named_without_paths_of_the_host(word: str, said: str, reason: str) -> None:
    assert fault_of(word, said, AGENT).startswith(reason)


@pytest.mark.parametrize(
    ("files", "code", "short"),
    [
        ({"memory.events": "oom 1\noom_kill 1\noom_group_kill 0\n"}, 1, True),
        ({"memory.events": "oom 0\noom_kill 0\noom_group_kill 0\n"}, 137, False),
        ({"memory.max_usage_in_bytes": str(64 * 2**20 - 4096)}, 137, True),
        ({"memory.max_usage_in_bytes": str(64 * 2**20)}, 1, False),
        ({"memory.max_usage_in_bytes": str(2**20)}, 137, False),
        ({}, 137, False),
    ],
)
def test_a_lack_of_memory_is_read_from_control_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], code: int, short: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(containing, "_groups", lambda _: [tmp_path])
    assert ran_out("flexmarl/1", code, 64 * 2**20) is short


def test_groups_of_rooms_are_removed_once_nobody_waits_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone, there = tmp_path / "999999999", tmp_path / "1"
    for folder in (gone / "libpod-a" / "deep", there):
        folder.mkdir(parents=True)
    monkeypatch.setattr(containing, "_groups", lambda _: [gone, there])
    containing.remove_left()
    assert [one.name for one in tmp_path.iterdir()] == ["1"]


def test_the_group_of_a_room_is_removed_once_the_kernel_lets_go_of_its_last_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    last = tmp_path / "7" / "libpod-a" / "process"
    last.parent.mkdir(parents=True)
    last.touch()
    monkeypatch.setattr(containing, "_groups", lambda _: [one for one in (tmp_path / "7",) if one.exists()])
    monkeypatch.setattr("time.sleep", lambda _: last.unlink())
    containing.remove_group("flexmarl/7")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_no_podman_or_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    program = tmp_path / "engine"
    info = '{"version": {"Version": "%s"}, "store": {"graphRoot": "/s", "graphDriverName": "%s"}}'
    for said, why in (
        ("echo {}", "is no podman of version 4.0 or later"),
        (f"echo '{info % ('3.4.4', 'overlay')}'", r"is no podman of version 4.0 or later \(3.4.4\)"),
        (f"echo '{info % ('4.3.1', 'vfs')}'", "storage of the driver vfs"),
        ("echo no >&2; exit 1", "info failed: no"),
    ):
        program.write_text(f"#!/bin/sh\n{said}\n")
        program.chmod(0o755)
        with pytest.raises(NoEngine, match=why):
            find_engine(ContainerSettings(str(program)))
    program.write_text(f"#!/bin/sh\necho '{info % ('5.4.0', 'overlay')}'\n")
    found = find_engine(ContainerSettings(f"{program} --x"))
    assert (found.command, found.version, found.store) == ((str(program), "--x"), "5.4.0", "/s")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NoEngine, match="do not run as root"):
        find_engine(ContainerSettings(str(program)))
