"""What a machine offers, from its cores and from nvidia-smi's listing."""

from flexmarl.contracts.hardware import Hardware
from workers.nodes.inventory import classed, cpu_devices, cuda_devices, discover


def test_any_machine_fits_an_engine_and_a_trainer():
    devices = discover("box")
    assert len(devices) >= 2
    assert len({device.id for device in devices}) == len(devices)


def test_cpu_shares_are_named_by_node_and_number():
    devices = cpu_devices("box", "default")
    assert [device.id for device in devices[:2]] == ["box.cpu0", "box.cpu1"]
    assert all(device.memory_bytes > 0 for device in devices)


def test_a_single_gpu_is_two_shares():
    devices = cuda_devices("box", "0, NVIDIA H100 80GB HBM3, 81559\n")
    assert [device.id for device in devices] == ["box.gpu0", "box.gpu1"]
    assert [device.facts["cuda_index"] for device in devices] == [0, 0]
    assert devices[0].memory_bytes == 81559 * 2**20 // 2


def test_each_of_several_gpus_is_one_device():
    devices = cuda_devices("box", "0, A, 100\n1, B, [N/A]\n")
    assert [(device.id, device.facts["cuda_index"]) for device in devices] == [("box.gpu0", 0), ("box.gpu1", 1)]
    assert devices[1].memory_bytes == 0


def test_no_gpu_no_device():
    assert cuda_devices("box", "") == []


def test_a_machine_offers_as_many_shares_as_it_is_told():
    devices = cpu_devices("box", "default", 5)
    assert [device.id for device in devices] == [f"box.cpu{i}" for i in range(5)]
    assert len(cpu_devices("box", "default", 1)) == 2, "an engine and a trainer fit on any machine"


def test_a_device_is_of_the_class_that_its_type_was_declared():
    found = cuda_devices("box", "0, NVIDIA H100 80GB HBM3, 81559\n1, NVIDIA H20, 100\n2, A40, 100\n")
    declared = {"H100": Hardware.PREFILL, "H20": Hardware.DECODE}
    assert [classed(device, declared).facts.get("class") for device in found] == ["prefill", "decode", None]
    assert all(device.facts["class"] == "cpu" for device in discover("box") if device.kind == "cpu")
    elsewhere = discover("box", {"CPU share": Hardware.DECODE})
    assert all(device.facts["class"] == "decode" for device in elsewhere if device.kind == "cpu")
