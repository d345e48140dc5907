"""A long way between a node and the web service: TLS, delay, loss, partitions; and a host that has no other way.

The kernel's own emulation of links is missing on many machines, so the way is a proxy. It speaks TLS to the node and
holds what passes for `delay_s` each way. A lost packet is what TCP makes of it: what is behind it waits for the
retransmission too. In a partition nothing passes and nothing is refused, as where packets vanish.
"""

import asyncio
import contextlib
import datetime
import ipaddress
import os
import random
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PIECE = 65_536
RETRANSMITTED_S = 0.25
"""What waits behind a lost packet waits so much longer."""


class FarLink:
    """Listens with TLS and passes on to a service that speaks plain HTTP. Use as a context manager."""

    def __init__(self, folder: Path, service: str, host: str = "127.0.0.1", delay_s: float = 0.0, loss: float = 0.0):
        self._target = urlsplit(service)
        self._host, self._delay_s, self._loss = host, delay_s, loss
        self.certificate = folder / "link.pem"
        self._key = folder / "link.key"
        self._loop = asyncio.new_event_loop()
        self._whole = asyncio.Event()
        self._random = random.Random(0)
        self._thread = threading.Thread(target=self._loop.run_forever, name="far-link", daemon=True)
        self.url = ""
        self.passed = 0
        """Bytes, both ways."""

    def __enter__(self) -> "FarLink":
        make_certificate(self.certificate, self._key, self._host)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def cut(self, seconds: float) -> None:
        """Let nothing pass for some time."""
        self._loop.call_soon_threadsafe(self._whole.clear)
        time.sleep(seconds)
        self._loop.call_soon_threadsafe(self._whole.set)

    async def _listen(self) -> None:
        self._whole.set()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self._key)
        server = await asyncio.start_server(self._met, self._host, 0, ssl=context)
        self.url = f"https://{self._host}:{server.sockets[0].getsockname()[1]}"

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._whole.wait()
        try:
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:  # nobody listens there now: whoever asks is told so at once, and does not wait for an answer
            writer.close()
            return
        try:
            await asyncio.gather(self._one_way(reader, back), self._one_way(there, writer))
        finally:
            for end in (writer, back):
                end.close()

    async def _one_way(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Pass on what comes, in order, each piece as late as it is far; then the end."""
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(256)
        taking = asyncio.ensure_future(self._take(source, on_the_way))
        try:
            with contextlib.suppress(OSError):
                while True:
                    due, piece = await on_the_way.get()
                    await asyncio.sleep(max(0.0, due - self._loop.time()))
                    await self._whole.wait()
                    if not piece:
                        if target.can_write_eof():
                            target.write_eof()
                        else:
                            target.close()  # TLS cannot close one half
                        return
                    self.passed += len(piece)
                    target.write(piece)
                    await target.drain()
        finally:
            taking.cancel()

    async def _take(self, source: asyncio.StreamReader, on_the_way: "asyncio.Queue[tuple[float, bytes]]") -> None:
        due = 0.0
        while True:
            try:
                piece = await source.read(PIECE)
            except OSError:
                piece = b""
            late = self._delay_s + (RETRANSMITTED_S if self._random.random() < self._loss else 0.0)
            due = max(due, self._loop.time() + late)
            await on_the_way.put((due, piece))
            if not piece:
                return


def make_certificate(certificate: Path, key_file: Path, host: str) -> None:
    """Write a certificate that signs itself, for one address, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "far link")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    kept = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key_file.write_bytes(key.private_bytes(serialization.Encoding.PEM, *kept))


def can_be_apart() -> bool:
    """Whether hosts with a network of their own can be made here."""
    return os.geteuid() == 0 and shutil.which("ip") is not None and _tried("ip", "netns", "list")


def _tried(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def address_for(number: int) -> str:
    """Return our address on a network."""
    return f"10.77.{number}.1"


@contextmanager
def host_apart(name: str, number: int, hidden: Path) -> Iterator[tuple[str, list[str]]]:
    """Make a network with one way out; yield our address on it, and what a command there begins with.

    `hidden` is empty for whoever runs there: the folder is not shared.
    """
    ours, theirs, outside, inside = address_for(number), f"10.77.{number}.2", f"fm{number}o", f"fm{number}i"
    steps = [
        f"ip netns add {name}",
        f"ip link add {outside} type veth peer name {inside}",
        f"ip link set {inside} netns {name}",
        f"ip addr add {ours}/30 dev {outside}",
        f"ip link set {outside} up",
        f"ip -n {name} addr add {theirs}/30 dev {inside}",
        f"ip -n {name} link set {inside} up",
        f"ip -n {name} link set lo up",
    ]
    try:
        for step in steps:
            subprocess.run(step.split(), check=True, capture_output=True)
        hiding = f'mount -t tmpfs none "{hidden}" && exec "$@"'
        yield ours, ["ip", "netns", "exec", name, "sh", "-c", hiding, "sh"]
    finally:
        _tried("ip", "link", "del", outside)
        _tried("ip", "netns", "del", name)
