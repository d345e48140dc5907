"""Which program a lease starts, and what is said when this machine lacks it or the child cannot work."""

import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from flexmarl.contracts.events import DeviceUse
from workers import settings
from workers.child import ChildFailed, ReadyLine
from workers.children import Failed, Ready, _said
from workers.errors import HostingError
from workers.log_tail import last_words
from workers.programs import VLLM_MODULE, program_of

VLLM = {"resources": {"engine": "vllm"}}


def having(python: str = "") -> settings.Settings:
    urls = {"DATABASE_URL": "postgresql://here/x", "REDIS_URL": "redis://here/0"}
    known = settings.load({**urls, "FLEXMARL_HOME": "x", "FLEXMARL_CLUSTER_KEY": "x"})
    return replace(known, vllm_python=python)  # one that has gone since the settings were read


def test_trainers_and_torch_engines_run_on_this_interpreter():
    for use, spec in ((DeviceUse.TRAINER, VLLM), (DeviceUse.ENGINE, {}), (DeviceUse.ENGINE, {"resources": {}})):
        assert program_of(use, spec, having()).python == sys.executable


def test_a_vllm_engine_runs_on_the_interpreter_that_was_set_and_finds_this_code():
    program = program_of(DeviceUse.ENGINE, VLLM, having(sys.executable))
    assert (program.module, program.python) == (VLLM_MODULE, sys.executable)
    paths = program.environment["PYTHONPATH"].split(":")
    assert any((Path(path) / "workers" / "child.py").exists() for path in paths)
    assert any((Path(path) / "flexmarl" / "contracts").exists() for path in paths)


@pytest.mark.parametrize("python", ["", "/nowhere/bin/python"])
def test_a_missing_interpreter_is_said_with_the_setting_and_the_way_out(python):
    with pytest.raises(HostingError, match=r"FLEXMARL_VLLM_PYTHON .*resources.engine: torch"):
        program_of(DeviceUse.ENGINE, VLLM, having(python))


def test_a_child_says_ready_or_why_it_cannot_work():
    assert _said(msgspec.json.encode(ReadyLine(80, "e1"))) == Ready(80)
    refusal = ChildFailed("unsupported_model", "heads of 16", "choose another model")
    assert _said(msgspec.json.encode(refusal)) == Failed("unsupported_model: heads of 16; choose another model")
    assert _said(b"Traceback\n") is None


def test_last_words_are_the_last_line_of_this_life(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text('{"event": "of a former life"}\n')
    start = log.stat().st_size
    assert last_words(log, start) == ""
    with log.open("a") as file:
        file.write('Traceback (most recent call last)\n{"event": "out of memory", "level": "error"}\n\n')
    assert last_words(log, start) == "out of memory"
    log.write_text("y" * 1000)
    assert last_words(log, 0) == "y" * 300
    assert last_words(tmp_path / "none.log", 0) == ""
