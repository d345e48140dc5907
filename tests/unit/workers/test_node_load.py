"""What a node says of itself is measured, or not said."""

import os

from flexmarl.store.control.nodes import DeviceFacts
from workers.nodes.load import child_load, gpu_load, measure, node_load


def test_a_machine_and_a_child_are_measured() -> None:
    node_load()
    found = node_load()
    assert found["memory_used"] > 0
    assert 0 <= found["cpu_share"] <= 1
    assert child_load(os.getpid())["memory_bytes"] > 1_000_000
    assert child_load(2**22 + 1) is None


def test_gpus_say_what_their_tool_says_and_garbage_says_nothing() -> None:
    devices = [
        DeviceFacts("box.gpu0", "cuda", 0, facts={"cuda_index": 0}),
        DeviceFacts("box.gpu1", "cuda", 1, facts={"cuda_index": 1}),
        DeviceFacts("box.cpu0", "cpu", 0),
    ]
    found = gpu_load(devices, "0, 88, 4096, 61\n1, [N/A], 0, 40\nnonsense\n")
    assert list(found) == ["box.gpu0"]
    assert (found["box.gpu0"]["use"], found["box.gpu0"]["temperature_c"]) == (0.88, 61)


def test_a_free_device_has_no_load() -> None:
    devices = [DeviceFacts("box.cpu0", "cpu", 0), DeviceFacts("box.cpu1", "cpu", 1)]
    _, found = measure(devices, [("box.cpu1", os.getpid())])
    assert found["box.cpu0"] == {}
    assert found["box.cpu1"]["memory_bytes"] > 0
