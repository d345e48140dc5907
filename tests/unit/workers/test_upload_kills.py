"""A process that uploads is killed while a chunk is half sent: nothing half is stored, and another one goes on with
what is missing."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import torch

from tests.support.system import ROOT
from tests.unit.workers.test_node_uploads import LARGE, RUN, Straight, keeper, publisher
from workers.transfer import LocalTier
from workers.transfer.contents import CHUNK_BYTES

WITHIN_S = 120.0
HALF = CHUNK_BYTES // 2
UPLOADS = f"""
import sys
from pathlib import Path
from tests.unit.workers.test_node_bringing import settings
from tests.unit.workers.test_node_uploads import Straight, publisher
sender = Straight(sys.argv[1])
made = publisher(Path(sys.argv[2]), sender)
made._sent(sender, {RUN}, sys.argv[3], {{"policy": "solver", "keep": "version"}})
"""


class Way:
    """Carries bytes to a node; may let one chunk through and stop in the middle of all others."""

    def __init__(self, address: str, stops: bool) -> None:
        self._host, _, port = address.partition(":")
        self._port = int(port)
        self._stops = stops
        self._whole = ""
        self.carried = 0
        self.stopped = asyncio.Event()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        answers = asyncio.create_task(self._copied(there, writer))
        await self._sent(reader, back)
        back.close()
        with contextlib.suppress(ConnectionError):
            await answers
        writer.close()

    async def _sent(self, reader: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        carried, own = 0, f"{id(reader)}"
        while piece := await reader.read(2**16):
            if self._stops and carried > HALF and (self._whole or own) != own:
                self.stopped.set()
                with contextlib.suppress(ConnectionError):
                    while await reader.read(2**16):  # it is killed meanwhile
                        pass
                return
            if carried > HALF:
                self._whole = self._whole or own
            back.write(piece)
            await back.drain()
            carried += len(piece)
            self.carried += len(piece)

    async def _copied(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(2**16):
            writer.write(piece)
            await writer.drain()


@asynccontextmanager
async def way(address: str, stops: bool) -> AsyncIterator[tuple[Way, str]]:
    made = Way(address, stops)
    async with await asyncio.start_server(made.carry, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield made, f"{host}:{port}"


async def uploading(address: str, home: Path, digest: str) -> asyncio.subprocess.Process:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": f"{ROOT / 'platform'}:{ROOT}"}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", UPLOADS, address, str(home), digest, env=environment, cwd=ROOT
    )


async def test_an_uploader_that_is_killed_in_the_middle_of_chunks_leaves_nothing_half(tmp_path: Path) -> None:
    weights = torch.rand(LARGE)
    here, there = LocalTier(tmp_path / "a", "run-7-solver"), LocalTier(tmp_path / "b")
    digest = here.put({"w": weights}, {"kind": "weights"}).digest
    names = here.description(digest).chunks
    async with keeper(tmp_path / "b") as sender:
        address = sender._address.url.removeprefix("http://")
        async with way(address, stops=True) as (road, entry):
            process = await uploading(entry, tmp_path / "a", digest)
            await asyncio.wait_for(road.stopped.wait(), WITHIN_S)
            async with asyncio.timeout(WITHIN_S):
                while not any(there.chunk(name).exists() for name in names):
                    await asyncio.sleep(0.01)
            process.kill()
            await process.wait()
        assert there.locate(digest) is None, "nobody is served a content that is not whole"
        came = [name for name in names if there.chunk(name).exists()]
        assert 0 < len(came) < len(names)
        whole = sum(there.chunk(name).stat().st_size for name in came)
        async with way(address, stops=False) as (road, entry):
            other = Straight(entry)
            keep = {"policy": "solver", "keep": "version"}
            await asyncio.to_thread(publisher(tmp_path / "a", other)._sent, other, RUN, digest, keep)
        assert road.carried < weights.nbytes - whole + 2**20, "what lay there whole is not sent again"
    assert torch.equal(there.get(digest)["w"], weights)
