"""How close swapping a training state comes to a raw copy of the same bytes on the same medium.

A state is weights, both Adam moments and the accumulator in fp32: 16 bytes per parameter. `share_of_raw_<tier>` is the
time of the raw copy there and back over that of `suspend` and `resume`, checksums, manifests and all. The raw copy uses
as many threads, mapped memory for memory, one plain file with one flush for disks, one plain download for a peer.
Variants: `first` touches fresh memory or files, `reuse` memory that is there; `cold` reads after the page cache of the
files was dropped, `warm` from it. Every round changes all chunks, so nothing is spared because it lies there already.
"""

import argparse
import asyncio
import io
import mmap
import os
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import harness
import numpy as np
import torch
from aiohttp import web

from workers.transfer import LocalTier
from workers.transfer.contents import encode
from workers.transfer.objects import ObjectStore
from workers.transfer.parallel import in_threads
from workers.transfer.peer import Peer, StateRoutes
from workers.transfer.plane import DiskShelter, OwnMemory, Plane, Shelter
from workers.transfer.shared import MEMORY, SharedMemory

PARTS = ("master", "first", "second", "accumulated")
SLICE = 16 * 2**20
Bytes = np.ndarray


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parameters", type=int, nargs="+", default=[50_000_000, 200_000_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiers", nargs="+", default=["process", "host_memory", "disk", "peer", "object"])
    parser.add_argument("--folder", type=Path, default=None, help="where the disk tiers lie; a temporary folder")


class State:
    """A training state, memory to resume it into, and one flat copy of each for the raw side."""

    def __init__(self, parameters: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.tensors = {name: torch.rand(parameters, generator=generator) for name in PARTS}
        self.room = {name: torch.zeros(parameters) for name in PARTS}
        self.bytes = 16 * parameters

    def change(self) -> None:
        """Make every chunk another one, at no cost."""
        for tensor in self.tensors.values():
            tensor[:: 2**16] += 0.001

    def check(self) -> None:
        if not all(torch.equal(self.room[name][:: 2**12], self.tensors[name][:: 2**12]) for name in PARTS):
            raise AssertionError("what came back is not what was put")

    def slices(self, source: dict[str, torch.Tensor]) -> list[Bytes]:
        """Return a state's memory in slices, in order."""
        flat = [source[name].view(torch.uint8).numpy() for name in PARTS]
        return [part[start : start + SLICE] for part in flat for start in range(0, len(part), SLICE)]

    def write(self, file: io.FileIO) -> None:
        for part in self.slices(self.tensors):
            file.write(part.data)

    def read(self, file: io.FileIO) -> None:
        """Fill the memory to resume into."""
        for part in self.slices(self.room):
            file.readinto(part.data)


def copy(pairs: list[tuple[Bytes, Bytes]]) -> None:
    in_threads(lambda pair: np.copyto(pair[0], pair[1]), pairs)


def over(memory: Bytes, parts: list[Bytes]) -> list[Bytes]:
    """Cut memory as the parts are cut."""
    ends = np.cumsum([len(part) for part in parts])
    return [memory[end - len(part) : end] for end, part in zip(ends, parts, strict=True)]


@contextmanager
def timed(result: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    result.append(time.perf_counter() - began)


def swapped(state: State, plane: Plane, between: Callable[[], None] = lambda: None) -> float:
    """Suspend, resume into memory that is there, let go; return the seconds of the first two."""
    state.change()
    taken: list[float] = []
    with timed(taken):
        ticket = plane.suspend(state.tensors, {"epoch": "3:a"})
    between()
    with timed(taken):
        plane.resume(ticket, state.room)
    state.check()
    plane.release(ticket)
    return sum(taken)


def raw_memory(state: State, memory: Bytes | None) -> float:
    """Copy into mapped memory (fresh when none is given) and back."""
    state.change()
    taken: list[float] = []
    out, back = state.slices(state.tensors), state.slices(state.room)
    with timed(taken):
        if memory is None:
            memory = mapped(state.bytes)
        there = over(memory, out)
        copy(list(zip(there, out, strict=True)))
    with timed(taken):
        copy(list(zip(back, there, strict=True)))
    return sum(taken)


def raw_once(state: State) -> float:
    """Copy once into memory that is there: what handing memory over cannot be slower than."""
    taken: list[float] = []
    pairs = list(zip(state.slices(state.room), state.slices(state.tensors), strict=True))
    with timed(taken):
        copy(pairs)
    return sum(taken)


def mapped(size: int) -> Bytes:
    """Return fresh memory of the memory file system."""
    with tempfile.TemporaryFile(dir=MEMORY) as file:
        os.ftruncate(file.fileno(), size)
        return np.frombuffer(mmap.mmap(file.fileno(), size), dtype=np.uint8)


def raw_disk(state: State, folder: Path, cold: bool) -> float:
    """Write one file, flush it, read it back."""
    state.change()
    path, taken = folder / "raw", list[float]()
    with timed(taken), open(path, "wb", buffering=0) as file:
        state.write(file)
        os.fsync(file.fileno())
    if cold:
        drop(path)
    with timed(taken), open(path, "rb", buffering=0) as file:
        state.read(file)
    state.check()
    path.unlink()
    return sum(taken)


def drop(*paths: Path) -> None:
    """Take files out of the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def node(home: Path) -> Iterator[str]:
    """Serve a state folder, and plain files beside it, as a node does."""
    routes, loop, ready = StateRoutes(home), asyncio.new_event_loop(), threading.Event()
    app = web.Application()
    app.add_routes([web.get("/v1/state/{digest}", routes.manifest), web.get("/v1/state/chunks/{name}", routes.chunk)])
    app.add_routes([web.static("/plain", home)])
    ports: list[int] = []

    async def serve() -> None:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        ports.append(runner.addresses[0][1])
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    yield f"127.0.0.1:{ports[0]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


def pulled(state: State, home: Path, other: Path, address: str) -> float:
    """Put on one node, get on another; return the seconds of both."""
    state.change()
    taken: list[float] = []
    one, two = LocalTier(home), LocalTier(other)
    with timed(taken):
        digest = one.put(state.tensors).digest
    with timed(taken):
        Plane(two, sources=[Peer(address, "")]).bring(digest)
        two.get(digest, into=state.room)
    state.check()
    one.evict(digest)
    two.evict(digest)
    return sum(taken)


def raw_pulled(state: State, home: Path, other: Path, address: str) -> float:
    """Write and flush a file, download it into another, flush that, read it."""
    state.change()
    path, there, taken = home / "raw", other / "raw", list[float]()
    with timed(taken):
        with open(path, "wb", buffering=0) as file:
            state.write(file)
            os.fsync(file.fileno())
        with urllib.request.urlopen(f"http://{address}/plain/raw") as body, open(there, "wb", buffering=0) as file:
            shutil.copyfileobj(body, file, 8 * 2**20)
            os.fsync(file.fileno())
        with open(there, "rb", buffering=0) as file:
            state.read(file)
    state.check()
    path.unlink()
    there.unlink()
    return sum(taken)


def stored(state: State, folder: Path) -> float:
    """Put into an object store of local files, get on a node that has nothing."""
    state.change()
    taken: list[float] = []
    store, two = ObjectStore(f"file://{folder}/bucket"), LocalTier(folder / "two")
    with timed(taken):
        encoded = encode(state.tensors)
        store.store(encoded)
    with timed(taken):
        Plane(two, sources=[store]).bring(encoded.digest)
        two.get(encoded.digest, into=state.room)
    state.check()
    two.evict(encoded.digest)
    shutil.rmtree(folder / "bucket")
    return sum(taken)


def raw_stored(state: State, folder: Path) -> float:
    """Write a file, copy it into another, flush that, read it."""
    state.change()
    path, there, taken = folder / "raw", folder / "raw2", list[float]()
    with timed(taken):
        with open(path, "wb", buffering=0) as file:
            state.write(file)
        shutil.copyfile(path, there)
        with open(there, "rb+", buffering=0) as file:
            os.fsync(file.fileno())
            state.read(file)
    state.check()
    path.unlink()
    there.unlink()
    return sum(taken)


Sides = tuple[Callable[[], float], Callable[[], float]]


def memory_sides(state: State, home: Path, reused: SharedMemory) -> dict[str, Sides]:
    plane = Plane(LocalTier(home), [reused])

    def again() -> float:
        swapped(state, plane)
        there = reused._free[-1].view[: state.bytes]  # the memory that the plane uses: two would not fit everywhere
        return raw_memory(state, there)

    def first() -> float:
        fresh = SharedMemory(home / "fresh", 8 * state.bytes)
        try:
            return swapped(state, Plane(LocalTier(home), [fresh]))
        finally:
            fresh.close()

    return {
        "host_memory_first": (lambda: raw_memory(state, None), first),
        "host_memory_reuse": (again, lambda: swapped(state, plane)),
    }


def sides(tier: str, state: State, folder: Path, address: str, memory: SharedMemory) -> dict[str, Sides]:
    """Return both sides of each variant of a tier: raw, ours."""
    home = folder / "one"
    disk: Shelter = DiskShelter(home, "suspended")
    handed = Plane(LocalTier(home), [OwnMemory(4 * state.bytes)])
    plane = Plane(LocalTier(home), [disk])

    def cold() -> None:
        drop(*(home / "state").glob("*.chunk"))

    match tier:
        case "process":
            return {"process": (lambda: raw_once(state), lambda: swapped(state, handed))}
        case "host_memory":
            return memory_sides(state, home, memory)
        case "disk":
            return {
                "disk_warm": (lambda: raw_disk(state, home, False), lambda: swapped(state, plane)),
                "disk_cold": (lambda: raw_disk(state, home, True), lambda: swapped(state, plane, cold)),
            }
        case "peer":
            two = folder / "two"
            return {"peer": (lambda: raw_pulled(state, home, two, address), lambda: pulled(state, home, two, address))}
        case "object":
            return {"object": (lambda: raw_stored(state, folder), lambda: stored(state, folder))}
        case _:
            raise SystemExit(f"no tier {tier!r}")


def main() -> None:
    report = harness.start("swap", __doc__ or "", options)
    sizes, repeats = report.settings["parameters"], report.settings["repeats"]
    if report.quick:
        sizes, repeats = [1_000_000], 2
    folder = Path(tempfile.mkdtemp(prefix="flexmarl-swap-", dir=report.settings.pop("folder")))
    (folder / "one").mkdir()
    (folder / "two").mkdir()
    memory = SharedMemory(folder, 2**40)
    report.settings |= {"parameters": sizes, "repeats": repeats, "cores": len(os.sched_getaffinity(0))}
    try:
        with node(folder / "one") as address:
            for size in sizes:
                state = State(size)
                for tier in report.settings["tiers"]:
                    for name, (raw, ours) in sides(tier, state, folder, address, memory).items():
                        measure(report, f"{name}_{size // 10**6}m", state.bytes, raw, ours, repeats)
                memory.close()
                memory = SharedMemory(folder, 2**40)
    finally:
        memory.close()
        shutil.rmtree(folder, ignore_errors=True)
    report.finish()


def measure(
    report: harness.Report, name: str, size: int, raw: Callable[[], float], ours: Callable[[], float], repeats: int
) -> None:
    times = harness.interleave({"raw": raw, "ours": ours}, repeats)
    report.ratio(f"share_of_raw_{name}", harness.paired_ratios(times["raw"], times["ours"]))
    report.figures[f"seconds_{name}"] = float(np.median(times["ours"]))
    report.figures[f"gb_per_s_{name}"] = 2 * size / 1e9 / float(np.median(times["ours"]))


if __name__ == "__main__":
    main()
