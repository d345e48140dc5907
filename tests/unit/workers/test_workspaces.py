"""Workspaces of commands: nothing is written outside of them, what changed is named, and what is kept is bounded."""

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.packages.inside import commanding, workspaces
from workers.packages.inside.shapes import ProgramFault
from workers.roots import python_path

MOST = 2**20


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    return made


@pytest.fixture(params=["with filters", "as before 3.11.4"])
def archives(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python have the filters of its archives, or not, as that of Debian 12."""
    if request.param == "as before 3.11.4":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a package, in place of the interpreter's own."""
    monkeypatch.setattr(workspaces.sysconfig, "get_path", lambda name: str(tmp_path / "site"))
    made = tmp_path / "site/tasks"
    made.mkdir(parents=True)
    return made


def packed(workspace: Path, most: int = MOST) -> list[bytes]:
    pieces: list[bytes] = []
    workspaces.pack(workspace, pieces.append, most)
    return pieces


@pytest.mark.usefixtures("archives")
def test_a_folder_an_archive_and_columns_are_laid_out(package: Path, workspace: Path) -> None:
    (package / "7/__pycache__").mkdir(parents=True)
    (package / "7/src").mkdir()
    (package / "7/src/main.py").write_text("a = 1\n")
    (package / "7/src/main.py").chmod(0o444)
    (package / "7/__pycache__/main.pyc").write_text("compiled")
    workspaces.lay(workspace, "tasks/7", {"src/main.py": "a = 2\n", "data/row.txt": "row"})
    assert (workspace / "src/main.py").read_text() == "a = 2\n", "columns lie over the folder"
    assert (workspace / "data/row.txt").read_text() == "row"
    assert not (workspace / "__pycache__").exists()
    with tarfile.open(package / "whole.tar.gz", "w:gz") as archive:
        archive.add(package / "7/src/main.py", "from_tar.py")
    with zipfile.ZipFile(package / "whole.zip", "w") as archive:
        archive.writestr("from_zip.py", "a = 3\n")
    for name in ("whole.tar.gz", "whole.zip"):
        workspaces.lay(workspace, f"tasks/{name}", {})
    assert (workspace / "from_tar.py").exists()
    assert (workspace / "from_zip.py").exists()


def test_a_folder_that_is_not_there_is_named(package: Path, workspace: Path) -> None:
    with pytest.raises(ProgramFault, match="neither a folder nor an archive tasks/9"):
        workspaces.lay(workspace, "tasks/9", {})


def test_fresh_files_replace_whatever_an_agent_put_in_their_place(workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (workspace / "tests").symlink_to(outside)
    (workspace / "check.py").symlink_to(outside / "check.py")
    (workspace / "row.txt").mkdir()
    workspaces.lay(workspace, "", {"tests/check.py": "fresh", "check.py": "fresh", "row.txt": "fresh"})
    assert list(outside.iterdir()) == []
    assert {(workspace / name).read_text() for name in ("tests/check.py", "check.py", "row.txt")} == {"fresh"}


def test_what_changed_is_named_with_sizes_and_shown(workspace: Path) -> None:
    for name, text in {"kept": "same", "changed": "one\ntwo\n", "gone": "bye\n", "touched": "same"}.items():
        (workspace / name).write_text(text)
    (workspace / "binary").write_bytes(b"\xff\0")
    before = workspaces.state_of(workspace)
    (workspace / "changed").write_text("one\n2\n")
    (workspace / "gone").unlink()
    (workspace / "new").write_text("hello")
    (workspace / "touched").write_text("same")
    (workspace / "binary").write_bytes(b"\xff\0\1")
    (workspace / "link").symlink_to("/etc/passwd")
    (workspace / ".git").mkdir()
    (workspace / ".git/index").write_text("passed over")
    found = workspaces.changes(before, workspaces.state_of(workspace))
    assert [(one["path"], one["change"], one["before"], one["size"], one["shown"]) for one in found["files"]] == [
        ("binary", "changed", 2, 3, False),
        ("changed", "changed", 8, 6, True),
        ("gone", "removed", 4, None, True),
        ("link", "added", None, 11, True),
        ("new", "added", None, 5, True),
    ]
    assert (found["count"], found["cut"]) == (5, False)
    assert "--- a/changed\n+++ b/changed\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n" in found["diff"]
    assert "+-> /etc/passwd\n" in found["diff"], "a link is shown and not followed"
    assert "+hello\n\\ No newline at end of file\n" in found["diff"]


def test_what_is_kept_of_changes_is_bounded_and_says_so(workspace: Path) -> None:
    for number in range(workspaces.MOST_LISTED + 50):
        (workspace / f"file{number:04}").write_text("ä" * 1000 + "\n")
    found = workspaces.changes({}, workspaces.state_of(workspace))
    assert (len(found["files"]), found["count"], found["cut"]) == (200, 250, True)
    assert len(found["diff"].encode()) <= 64 * 2**10


def test_lines_that_would_take_long_to_compare_are_left_out(workspace: Path) -> None:
    (workspace / "long").write_text("a\n" * 10_000)
    found = workspaces.changes({}, workspaces.state_of(workspace))
    assert (found["diff"], found["cut"], found["files"][0]["shown"]) == ("", True, False)


@pytest.mark.usefixtures("archives")
def test_a_workspace_comes_over_whole_and_without_what_leads_out_of_it(workspace: Path, tmp_path: Path) -> None:
    (workspace / "a/b").mkdir(parents=True)
    (workspace / "a/b/text").write_text("there")
    (workspace / "a/run.sh").write_text("#!/bin/sh\n")
    (workspace / "a/run.sh").chmod(0o755)
    (workspace / "out").symlink_to("/etc/passwd")
    (workspace / "in").symlink_to("a/b/text")
    os.mkfifo(workspace / "fifo")
    other = tmp_path / "other"
    other.mkdir()
    workspaces.unpack(iter(packed(workspace)), other)
    assert sorted(str(path.relative_to(other)) for path in other.rglob("*")) == [
        "a", "a/b", "a/b/text", "a/run.sh", "in"
    ]  # fmt: skip
    assert (other / "in").read_text() == "there"
    assert os.access(other / "a/run.sh", os.X_OK)


@pytest.mark.usefixtures("archives")
def test_an_archive_that_climbs_leaves_nothing_outside(workspace: Path) -> None:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        door = tarfile.TarInfo("door")
        door.type, door.linkname = tarfile.SYMTYPE, ".."
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "../package"
        for link in (door, hard):
            archive.addfile(link)
        for name in ("../climbed", "/tmp/flexmarl-absolute", "door/climbed", "fine"):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"ok"))
    workspaces.unpack(iter([held.getvalue()]), workspace)
    assert (workspace / "fine").exists()
    assert not (workspace / "hard").exists()
    assert not (workspace / "door").is_symlink()
    assert not (workspace.parent / "climbed").exists()
    assert not Path("/tmp/flexmarl-absolute").exists()


def test_a_workspace_that_is_too_large_or_broken_is_named(workspace: Path) -> None:
    (workspace / "large").write_bytes(b"x" * 2 * MOST)
    with pytest.raises(ProgramFault, match="workspace: it has more than 1 MiB"):
        packed(workspace)
    with pytest.raises(ProgramFault, match="workspace: it cannot be unpacked"):
        workspaces.unpack(iter([b"no archive" * 100]), workspace)


def test_words_are_filled_in_once_and_unknown_ones_stay() -> None:
    told = {"prompt": "say {key} and $(rm)", "key": "secret", "task": 7}
    assert commanding.filled_in("--task={task} {prompt} {other} ${prompt}", told) == (
        "--task=7 say {key} and $(rm) {other} ${prompt}"
    )


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "none: answer.txt cannot be read: No such file or directory"),
        (lambda path: path.mkdir(), "none: answer.txt cannot be read: Is a directory"),
        (os.mkfifo, "none: answer.txt is no file"),
        (lambda path: path.write_bytes(b"x" * (commanding.MOST_FILE + 1)), "oversized: answer.txt has more than"),
    ],
)
def test_a_final_file_that_is_none_is_named(workspace: Path, make: Callable[[Path], None], says: str) -> None:
    make(workspace / "answer.txt")
    with pytest.raises(Exception, match=says):
        commanding.read_text(workspace, "answer.txt", "none")


LEAVES = """
import os, subprocess
from workers.packages.inside import commanding, hosting
hosting.adopts_orphans()
subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"])
commanding.end_descendants()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="descendants are seen on Linux")
def test_whatever_a_command_left_is_ended() -> None:
    """A process that left its session and whose parent has ended is found too."""
    there = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run([sys.executable, "-c", LEAVES], capture_output=True, text=True, check=True, env=there)
    assert not Path(f"/proc/{int(done.stdout)}").exists()
