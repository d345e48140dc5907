"""A real vLLM engine of two devices on this machine's processor: it serves, is updated, and is whole or gone."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.ended import ended
from tests.support.engines import RunningEngine, needs_vllm, running_engine
from tests.support.trained import ADAPTED, asked, differences, put_adapter
from workers.children import Ended

pytestmark = [needs_vllm, pytest.mark.slow, pytest.mark.timeout(900)]

MEAN_DIFFERENCE, MAX_DIFFERENCE = 1e-5, 1e-4
"""Of log-probabilities in fp32 from the trainer's, as of an engine of one device (`test_vllm_engine.py`)."""
DEVICES = 2
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def shared_before() -> set[str]:
    return shared()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, shared_before: set[str]) -> Iterator[RunningEngine]:
    adapted = {name: {"model": {"size": "M"}, "tuning": lora.model_dump()} for name, lora in ADAPTED.items()}
    with running_engine("vllm", tmp_path_factory.mktemp("ranks"), more=adapted, devices=DEVICES) as running:
        yield running


@pytest.fixture(scope="module")
def digests(engine: RunningEngine) -> list[str]:
    return [engine.put(seed) for seed in range(3)]


def shared() -> set[str]:
    """Return the names of memory that processes share through vLLM."""
    return {name for name in os.listdir("/dev/shm") if name.startswith("psm_") or "cpushm" in name}


def ranks(engine: RunningEngine) -> list[psutil.Process]:
    """Return the processes of an engine that compute: each holds what torch and its part of a model take."""
    children = psutil.Process(engine.child.pid).children(recursive=True)
    return [process for process in children if process.memory_info().rss > 100 * 2**20]


async def test_every_version_is_the_trainers_and_another_version_is_told_apart(
    engine: RunningEngine, digests: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Three versions after each other: each rank loads its part anew, and no key of the version before is read."""
    found = []
    for seed in (0, 1, 2):
        await engine.load("speaker", seed, digests[seed])
        choices = await engine.complete(**asked(seed, digests[seed]))
        assert [len(choice.token_ids) for choice in choices] == [24] * 4
        found += differences(seed, choices)
        assert max(differences(seed + 5, choices)) > 0.5, "other weights are told apart"
    assert len(ranks(engine)) == DEVICES
    mean, most = sum(found) / len(found), max(found)
    with capsys.disabled():
        print(f"\n[log-probabilities of {DEVICES} devices against the trainer, fp32: {mean:.1e}, {most:.1e}]", end=" ")
    assert mean < MEAN_DIFFERENCE
    assert most < MAX_DIFFERENCE


async def test_a_load_empties_the_prefix_cache(engine: RunningEngine, digests: list[str]) -> None:
    long = [[1] + [3 + i % 30 for i in range(100)]]
    await engine.load("speaker", 0, digests[0])
    await engine.complete(**asked(0, digests[0], prompt=long))
    await engine.load("speaker", 1, digests[1])
    choices = await engine.complete(**asked(1, digests[1], prompt=long))
    assert max(differences(1, choices, prompts=long)) < MAX_DIFFERENCE


@pytest.mark.full
async def test_two_versions_are_served_side_by_side(engine: RunningEngine, digests: list[str]) -> None:
    await engine.load("speaker", 1, digests[1])
    await engine.load("speaker", 2, digests[2], keeps=(1,))
    for version in (1, 2):
        choices = await engine.complete(**asked(version, digests[version]))
        assert max(differences(version, choices)) < MAX_DIFFERENCE


@pytest.mark.full
async def test_adapters_are_the_trainers_on_every_rank(engine: RunningEngine) -> None:
    for policy in ADAPTED:
        for version in (0, 1):
            digest = put_adapter(engine, policy, version)
            await engine.load(policy, version, digest)
            choices = await engine.complete(**asked(version, digest, model=policy))
            assert max(differences(version, choices, adapted=policy)) < MAX_DIFFERENCE


async def test_weights_that_do_not_fit_are_refused_and_the_next_ones_load(
    engine: RunningEngine, digests: list[str]
) -> None:
    broken = engine.put(1, spoil=float("nan"))
    status, answer = await engine.ask("/load", {"policy": "speaker", "version": 1, "digest": broken, "keeps": []})
    assert (status, answer["code"]) == (422, "nonfinite_weights"), answer
    await engine.load("speaker", 2, digests[2])
    assert max(differences(2, await engine.complete(**asked(2, digests[2])))) < MAX_DIFFERENCE


async def test_an_engine_that_lost_a_rank_is_gone_whole_with_the_rank_in_its_last_words(
    engine: RunningEngine, digests: list[str], shared_before: set[str]
) -> None:
    """Last in this file: the engine is gone afterwards. A rank is killed in the middle of a reply."""
    await engine.load("speaker", 0, digests[0])
    family = [psutil.Process(engine.child.pid), *psutil.Process(engine.child.pid).children(recursive=True)]
    asking = asyncio.create_task(engine.ask("/v1/completions", asked(0, digests[0], max_tokens=3000)))
    while (await engine.stats()).running == 0:
        await asyncio.sleep(0.01)
    os.kill(ranks(engine)[1].pid, signal.SIGKILL)
    assert await asyncio.to_thread(engine.told.get, timeout=60) == Ended(1)
    with pytest.raises(Exception, match=r"disconnected|refused|reset"):  # whatever the client calls it
        await asking
    _, alive = psutil.wait_procs(family, timeout=PATIENCE_S)
    assert [process for process in alive if not ended(process)] == []
    words = (engine.home / "engine.log").read_text().splitlines()
    assert any(f"of the {DEVICES} of this engine ended with signal 9" in line for line in words[-20:]), words[-20:]
    assert shared() <= shared_before


def test_a_model_whose_heads_do_not_divide_is_said_at_once(tmp_path: Path) -> None:
    engine = RunningEngine("vllm", tmp_path, devices=3)
    try:
        said = engine.told.get(timeout=120)
        assert "4 attention heads" in str(said)
        assert "cannot be split among 3 devices; set engine_devices to 1, 2 or 4" in str(said)
    finally:
        engine.child.stop(0.0)
