"""Output that a full disk, a closed pipe or a closed descriptor does not turn into an error."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from flexmarl.host.output import Unfailing, open_log

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def full() -> int:
    """A descriptor that takes nothing, as a file on a full disk does."""
    descriptor = os.open("/dev/full", os.O_WRONLY)
    yield descriptor
    os.close(descriptor)


def test_lines_are_dropped_counted_and_told_when_there_is_space(tmp_path: Path, full: int) -> None:
    path = tmp_path / "log"
    out = open_log(path)
    stream = Unfailing(out)
    stream.write("one\n")
    kept = os.dup(out)
    os.dup2(full, out)
    stream.write("two\nthree\n")
    stream.write("four\n")
    os.dup2(kept, out)
    stream.write("five\n")
    stream.write("six")
    stream.flush()
    os.close(out)
    one, missing, *rest = path.read_text().splitlines()
    assert (one, rest) == ("one", ["five", "six"])
    assert '"3 lines could not be written here"' in missing


def test_a_closed_descriptor_and_a_closed_pipe_are_borne() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    Unfailing(writer).write("nobody reads\n")
    os.close(writer)
    Unfailing(writer).write("closed\n")
    assert not Unfailing(writer).isatty()


def test_structlog_and_print_go_on(full: int) -> None:
    stream = Unfailing(full)
    structlog.PrintLogger(stream).msg("event")
    print("words", file=stream)
    assert stream.dropped == 2


def test_a_log_that_cannot_be_opened_is_the_null_device(tmp_path: Path) -> None:
    descriptor = open_log(tmp_path / "missing" / "log")
    assert os.readlink(f"/proc/self/fd/{descriptor}") == os.devnull
    os.close(descriptor)


@pytest.mark.parametrize("code", ["protect()", ""], ids=["protected", "as python has it"])
def test_a_process_that_logs_to_a_full_disk_does_its_work(tmp_path: Path, full: int, code: str) -> None:
    script = f"""
from flexmarl.host.output import protect
{code}
import structlog, sys
log = structlog.get_logger()
for n in range(3):
    log.info("line")
    print("words", flush=True)
open({str(tmp_path / "done")!r}, "w").close()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    ended = subprocess.run([sys.executable, "-c", script], stdout=full, stderr=full, env=environment, check=False)
    assert ((tmp_path / "done").exists(), ended.returncode == 0) == (bool(code), bool(code))
