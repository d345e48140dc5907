"""Small files over a power loss: the order of flushes, and what an unreadable file is told as."""

import errno
import json
import os
from pathlib import Path

import pytest

from flexmarl.host import files
from flexmarl.host.files import UnreadableFileError, read_json, write_durably, write_json
from flexmarl.launcher.binaries import copied


def test_content_is_flushed_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def noted(what: str, call):
        def inner(*given):
            kind = "folder " if what == "flush" and Path(f"/proc/self/fd/{given[0]}").resolve().is_dir() else ""
            seen.append(kind + what)
            return call(*given)

        return inner

    monkeypatch.setattr("os.writev", noted("write", os.writev))
    monkeypatch.setattr("os.fsync", noted("flush", os.fsync))
    monkeypatch.setattr("os.replace", noted("rename", os.replace))
    write_json(tmp_path / "state.json", {"a": 1})
    assert seen == ["write", "flush", "rename", "folder flush"]
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("step", ["os.writev", "os.fsync", "os.replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "state.json"
    write_json(path, {"a": 1})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(step, full)
    with pytest.raises(OSError, match="No space left"):
        write_durably(path, [b"new"])
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"\0" * 300, "holds zeros only"),
        (b'{"a": 1', "is damaged"),
        (b'{"a"' + b"\0" * 20, "is damaged"),
        (b"\xff\xfe\x00", "is damaged"),
        (b"[1]", "not a JSON object"),
    ],
)
def test_a_file_that_a_power_loss_left_is_told_apart_from_none(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "state.json"
    assert read_json(path) is None
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError, match=told):
        read_json(path)


def test_nobody_else_writes_small_files_of_the_launcher() -> None:
    root = Path(files.__file__).parents[1]
    text = "\n".join(path.read_text() for path in (root / "launcher").glob("*.py"))
    assert "write_text" not in text.replace("password.write_text", ""), "the password file of initdb is gone at once"
    assert "json.dump" not in text


def test_a_copy_of_a_server_gets_its_name_when_all_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made once and used by every later start, so a half one would keep all of them from starting."""
    (tmp_path / "package" / "bin").mkdir(parents=True)
    (tmp_path / "package" / "bin" / "server").write_bytes(b"server")
    (tmp_path / "package" / "bin" / "link").symlink_to("nowhere")
    (tmp_path / "places").mkdir()
    flushed: set[int] = set()
    flush, rename = os.fsync, Path.rename

    def noted(descriptor: int) -> None:
        flush(descriptor)
        flushed.add(os.fstat(descriptor).st_ino)

    def renamed(path: Path, target: Path) -> Path:
        missing = [one for one in (path, *path.rglob("*")) if not one.is_symlink() and one.stat().st_ino not in flushed]
        assert missing == [], "it has a name before it is on the disk"
        return rename(path, target)

    monkeypatch.setattr("os.fsync", noted)
    monkeypatch.setattr(Path, "rename", renamed)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "places"))
    made = copied([tmp_path / "package"], "server-1")
    assert (made / "package" / "bin" / "server").read_bytes() == b"server"
    assert made.parent.stat().st_ino in flushed, "and its name is there, too"
    assert copied([tmp_path / "package"], "server-1") == made
