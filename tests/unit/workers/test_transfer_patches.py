"""A patch makes the new bytes of the old ones, bit for bit, whatever they mean, and is as short as what changed."""

import numpy as np
import pytest
import torch

from workers.transfer.contents import memory_of
from workers.transfer.patches import PatchError, apply, patch_of


def patched(old: bytes, new: bytes) -> tuple[bytes, bytes]:
    """Return what a patch makes of the old bytes, and the patch."""
    patch = patch_of(memoryview(old), memoryview(new))
    room = bytearray(old)
    apply(patch, memoryview(room))
    return bytes(room), patch


@pytest.mark.parametrize("share", [0.0, 1e-5, 1e-3, 0.03, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("length", [0, 1, 3, 4, 6, 511, 4096, 200_003])
def test_any_bytes_become_any_others(length: int, share: float):
    chance = np.random.default_rng(length)
    old = chance.integers(0, 256, length, dtype=np.uint8)
    new = np.where(chance.random(length) < share, chance.integers(0, 256, length, dtype=np.uint8), old).astype(np.uint8)
    made, _ = patched(old.tobytes(), new.tobytes())
    assert made == new.tobytes()


@pytest.mark.parametrize("apart", [1, 2, 254, 255, 256, 509, 510, 511, 70_000])
def test_changes_far_apart_and_at_both_ends_are_found_again(apart: int):
    old = np.zeros(300_000, dtype=np.uint16)
    new = old.copy()
    new[::apart] = 7
    new[-1] = 9
    assert patched(old.tobytes(), new.tobytes())[0] == new.tobytes()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 1e-45])
def test_numbers_that_compare_strangely_are_bits_like_others(value: float):
    old, new = torch.zeros(1000), torch.zeros(1000)
    new[::7] = value
    made, _ = patched(bytes(memory_of(old)), bytes(memory_of(new)))
    assert made == bytes(memory_of(new))


@pytest.mark.parametrize(
    ("dtype", "moved", "most"),
    [
        (torch.bfloat16, 1e-6, 0.08),
        (torch.bfloat16, 0.0, 0.001),
        (torch.float32, 1e-6, 0.55),
        (torch.float32, 0.0, 0.001),
    ],
)
def test_a_patch_is_as_short_as_what_changed(dtype: torch.dtype, moved: float, most: float):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(1_000_000, generator=generator) * 0.02
    new = weights + moved * torch.randn(1_000_000, generator=generator).sign()
    old_bytes, new_bytes = bytes(memory_of(weights.to(dtype))), bytes(memory_of(new.to(dtype)))
    made, patch = patched(old_bytes, new_bytes)
    assert made == new_bytes
    assert len(patch) <= most * len(new_bytes)


def test_a_patch_is_never_much_longer_than_the_whole():
    old, new = np.random.default_rng(1).integers(0, 256, (2, 100_000), dtype=np.uint8)
    assert len(patched(old.tobytes(), new.tobytes())[1]) < 100_100


def test_what_does_not_fit_is_refused():
    with pytest.raises(PatchError):
        patch_of(memoryview(b"ab"), memoryview(b"abc"))
    patch = patch_of(memoryview(bytes(800)), memoryview(bytes(396) + b"\1" * 4 + bytes(400)))
    for room in (bytes(796), bytes(804), b""):
        with pytest.raises(PatchError):
            apply(patch, memoryview(bytearray(room)))
    for harmed in (b"", b"\x00", patch[:-1], b"\x93" + patch):
        with pytest.raises(PatchError):
            apply(harmed, memoryview(bytearray(800)))
