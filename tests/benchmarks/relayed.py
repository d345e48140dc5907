"""How long until several hosts have a new version, whose links are slow: each from the one that made it, and passed on.

Hosts are processes of this machine, and serve their state folder as a node does. What a host sends waits its turn and
takes its bytes over `--rate` MB a second. All receivers begin at once. `N_direct_s` and `N_relayed_s` are the seconds
until the last one has the whole, `N_ratio` their ratio (median of pairs), and `N_sent` how often the maker sent the
content. The least that any way could take is `once_s`: one transfer over one link.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from aiohttp import web
from harness import ROOT, interleave, paired_ratios, start

from workers.transfer import LocalTier
from workers.transfer.base import Source
from workers.transfer.peer import Peer, StateRoutes
from workers.transfer.relay import Relayed


def main() -> None:
    """Bring versions in turns, report the ratios."""
    if sys.argv[1:2] == ["host"]:
        asyncio.run(serve(Path(sys.argv[2]), float(sys.argv[3])))
        return
    report = start("relayed", __doc__ or "", _options)
    sizes = [3] if report.quick else [int(one) for one in report.settings["receivers"]]  # type: ignore[attr-defined]
    rate = float(str(report.settings["rate"]))
    megabytes = 32 if report.quick else int(str(report.settings["megabytes"]))
    repeats = 1 if report.quick else int(str(report.settings["repeats"]))
    with tempfile.TemporaryDirectory(prefix="flexmarl-relayed-") as folder:
        maker = LocalTier(Path(folder) / "maker", "maker")
        hosts = [Host(Path(folder) / name, rate) for name in ("maker", *(f"h{n}" for n in range(max(sizes))))]
        try:
            for size in sizes:
                sent: dict[str, list[float]] = {"direct": [], "relayed": []}
                run = partial(brought, maker, hosts[: size + 1], megabytes, sent)
                times = interleave({way: partial(run, way) for way in sent}, repeats)
                for way, often in sent.items():
                    report.figures[f"{size}_{way}_s"] = statistics.median(times[way])
                    report.figures[f"{size}_{way}_sent"] = statistics.median(often)
                report.ratio(f"{size}_ratio", paired_ratios(times["direct"], times["relayed"]))
        finally:
            for host in hosts:
                host.process.kill()
                host.process.wait(30)
    report.figures["once_s"] = megabytes * 2**20 / (rate * 1e6)
    report.finish()


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--receivers", nargs="+", default=[2, 4, 8])
    parser.add_argument("--rate", type=float, default=25.0, help="MB a second that a host sends")
    parser.add_argument("--megabytes", type=int, default=128, help="MiB of a version")
    parser.add_argument("--repeats", type=int, default=3)


class Host:
    """A process that serves what lies in a folder, and brings what it is told."""

    def __init__(self, home: Path, rate: float) -> None:
        command = [sys.executable, __file__, "host", str(home), str(rate)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.address = str(self.told())

    def tell(self, *words: object) -> None:
        """Give an order."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def told(self) -> object:
        """Read an answer."""
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def brought(maker: LocalTier, hosts: list[Host], megabytes: int, sent: dict[str, list[float]], way: str) -> float:
    """Bring a new version to all hosts but the first; return the seconds until the last has it."""
    weights = {"w": torch.rand(megabytes * 2**18)}
    digest = maker.put(weights).digest
    addresses = [host.address for host in hosts]
    hosts[0].tell("sent")
    before = float(str(hosts[0].told()))
    began = time.perf_counter()
    for host in hosts[1:]:
        others = [one for one in addresses[1:] if one != host.address] if way == "relayed" else []
        host.tell("bring", digest, addresses[0], others)
    for host in hosts[1:]:
        host.told()
    taken = time.perf_counter() - began
    hosts[0].tell("sent")
    sent[way].append((float(str(hosts[0].told())) - before) / (megabytes * 2**20))
    return taken


async def serve(home: Path, rate: float) -> None:
    """Serve a folder at a rate, and carry out orders."""
    routes, tier = StateRoutes(home), LocalTier(home, "receiver")
    turn, count = asyncio.Lock(), [0]

    async def chunk(request: web.Request) -> web.StreamResponse:
        answer = await routes.chunk(request)
        if isinstance(answer, web.FileResponse):
            size = tier.chunk(request.match_info["name"]).stat().st_size
            async with turn:
                await asyncio.sleep(size / (rate * 1e6))
            count[0] += size
        return answer

    app = web.Application()
    app.add_routes([web.get("/v1/state/{digest}", routes.manifest), web.get("/v1/state/chunks/{name}", chunk)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    own = "{}:{}".format(*runner.addresses[0][:2])
    print(json.dumps(own), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order, *rest = json.loads(line)
        if order == "sent":
            print(json.dumps(count[0]), flush=True)
            continue
        digest, origin, others = rest
        source: Source = Peer(origin, "")
        if others:
            source = Relayed(source, own, {one: Peer(one, "") for one in others})
        await asyncio.to_thread(tier.bring, digest, source)
        print(json.dumps("here"), flush=True)
        for held in tier.claims():
            if held != digest:
                tier.evict(held)


if __name__ == "__main__":
    main()
