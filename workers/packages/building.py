"""Builds a package: `python -m workers.packages.building HOME`, with a `BuildOrder` as JSON on its input.

A virtual environment of its own, what pip installs there, and the manifest that its interpreter makes of it. Each line
of output is one JSON object: `{"now": ...}` while it goes on, then `{"digest", "lock", "manifest"}` or
`{"code", "detail"}`. What pip and foreign code print goes to the error output, which is the log of the build.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path
from stat import S_ISREG
from typing import Any

import msgspec
from pydantic import ValidationError

from flexmarl.contracts.package_manifests import (
    BuildRefusal,
    LockedDistribution,
    OfferedCommand,
    OfferedEnvironment,
    OfferedProgram,
    OfferedServer,
    OfferedTool,
    PackageManifest,
    digest_of,
    normal_name,
)
from flexmarl.store.server_paths import without_paths
from workers.children import build_environment
from workers.packages import protocol_kit
from workers.packages.folders import SEEN, base_python, entered, keep, new_folder
from workers.packages.inside.verifiers_environments import BEYOND, UNDERSTOOD

MANIFEST_S = 300.0
MEMORY = 4 * 2**30
"""Bytes of address space while a manifest is made."""
MOST_REPORT = 2**26
"""Bytes of what pip says it installed."""
NEWEST_VERIFIERS = f"verifiers<{'.'.join(map(str, BEYOND))}"
"""Installed at most: packages mostly ask for a least version, and newer ones have no `load_environment`."""
OWN_GROUP = "flexmarl.environment"
_NICENESS = 5


class BuildFailed(Exception):
    """A package cannot be built; `code` is stable."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class BuildOrder(msgspec.Struct, frozen=True):
    """What is to be built."""

    distribution: str
    """Name of the distribution that was asked for."""
    requirement: str
    """Of the index; empty for a file."""
    file: str = ""
    """Path of an uploaded file."""
    entry: str = ""
    digest: str = ""
    """Of an earlier build that is made again; empty at first."""
    lock: list[dict[str, str]] = []
    """Of the earlier build: what is installed, exactly."""


def build(home: Path, order: BuildOrder) -> dict[str, Any]:
    """Build and keep a package. Raises BuildFailed."""
    os.umask(0o022)
    folder = new_folder(home)
    try:
        _say("making an environment")
        _run([base_python(), "-m", "venv", str(folder / "venv")], BuildRefusal.VENV_FAILED, folder)
        _say("installing")
        asked = order.requirement or hashlib.sha256(Path(order.file).read_bytes()).hexdigest()
        lock = _installed(home, folder, order)
        digest = digest_of(lock, order.entry, asked)
        if order.digest and digest != order.digest:
            raise BuildFailed(
                BuildRefusal.OTHER_BUILD, f"What was installed has digest {digest[:12]}, not {order.digest[:12]}."
            )
        _say("looking for environments")
        folder.chmod(SEEN)
        manifest = manifest_of(folder, order)
        keep(home, folder, digest)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "digest": digest,
        "lock": [one.model_dump() for one in lock],
        "manifest": manifest.model_dump(mode="json"),
    }


def _installed(home: Path, folder: Path, order: BuildOrder) -> tuple[LockedDistribution, ...]:
    """Install what was asked for, or what was installed before; return what that is. Raises BuildFailed."""
    file = ""
    if order.file:
        file = str(folder / "tmp" / Path(order.file).name)
        shutil.copyfile(order.file, file)
    if order.lock:
        pinned = folder / "tmp" / "lock.txt"
        pinned.write_text(_lock_text(order, file))
        reports = [_pip(home, folder, "--require-hashes", "--no-deps", "-r", str(pinned))]
    else:
        constraints = folder / "tmp" / "constraints.txt"
        constraints.write_text(f"{NEWEST_VERIFIERS}\n")
        reports = [_pip(home, folder, "-c", str(constraints), file or order.requirement)]
    if _speaks_own_protocol(folder):
        if not order.lock:
            reports.append(_pip(home, folder, *protocol_kit.requirements()))
        protocol_kit.copy_into(_site(folder))
    found = {}
    for report in reports:
        for one in report["install"]:
            name = normal_name(one["metadata"]["name"])
            found[name] = LockedDistribution(
                name=name, version=one["metadata"]["version"], sha256=sha256_of(one["download_info"], order.file)
            )
    return tuple(found[name] for name in sorted(found))


def sha256_of(download: dict[str, Any], file: str) -> str:
    """Return the digest of what pip installed from somewhere, empty where nobody says it.

    pip before 23.1, which Debian 12 brings, says it in another form, and nothing of a `file` that it was given.
    """
    info = download.get("archive_info", {})
    if said := info.get("hashes", {}).get("sha256") or info.get("hash", "").removeprefix("sha256="):
        return str(said)
    given = file and download.get("url", "").startswith("file:")
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if given else ""


def _lock_text(order: BuildOrder, file: str) -> str:
    """Return a lock as pip reads it; the uploaded file stands for its distribution."""
    lines = []
    for one in order.lock:
        uploaded = file and one["name"] == normal_name(order.distribution)
        named = f"{one['name']} @ {Path(file).as_uri()}" if uploaded else f"{one['name']}=={one['version']}"
        lines.append(f"{named} --hash=sha256:{one['sha256']}")
    return "\n".join(lines) + "\n"


def _pip(home: Path, folder: Path, *arguments: str) -> dict[str, Any]:
    """Install with pip, confined to the folder; return its report. Raises BuildFailed with what it said last."""
    report = folder / "tmp" / "report.json"
    report.unlink(missing_ok=True)
    fixed = ("install", "--no-input", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar=off")
    own = entered(folder, "install", str(home.resolve()))
    _run([*own, *fixed, f"--report={report}", *arguments], BuildRefusal.INSTALL_FAILED, folder)
    return _read_report(report)


def _read_report(report: Path) -> dict[str, Any]:
    """Read what pip says it installed: a file, and no way to another one, for what it ran could write there too."""
    try:
        with open(os.open(report, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            whole = S_ISREG(os.fstat(file.fileno()).st_mode) and os.fstat(file.fileno()).st_size <= MOST_REPORT
            found: dict[str, Any] = json.loads(file.read()) if whole else {}
            found["install"]
    except (OSError, ValueError, KeyError, TypeError):
        raise BuildFailed(BuildRefusal.INSTALL_FAILED, "pip did not say what it installed.") from None
    return found


def _run(command: list[str], code: str, folder: Path) -> None:
    """Run a program whose output is the log. Raises BuildFailed with its last line that says what is wrong."""
    environment = {**build_environment(), "HOME": "/tmp", "TMPDIR": str(folder / "tmp")}
    process = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        cwd=folder, check=False, text=True, errors="replace",
    )  # fmt: skip
    said = process.stdout.replace(str(folder), "...")
    sys.stderr.write(said)
    sys.stderr.flush()
    if process.returncode:
        raise BuildFailed(*trouble_of(said, code))


def trouble_of(said: str, code: str) -> tuple[str, str]:
    """Return the code of what pip said, and the words that say it; `code`: where nothing is known of it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    told = (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR:").strip()[:500]
    if "No matching distribution" in said:
        # An index that does not answer is told apart from one that lacks the distribution.
        away = "NewConnectionError" in said or "Max retries exceeded" in said or "Temporary failure in name" in said
        return (BuildRefusal.INDEX_UNREACHABLE if away else BuildRefusal.NOT_FOUND), told
    if f"(constraint) {NEWEST_VERIFIERS}" in said:
        least = ".".join(map(str, BEYOND))
        known = f"environments of {UNDERSTOOD}, which have load_environment, are"
        return (
            BuildRefusal.NOT_UNDERSTOOD,
            f"It needs verifiers {least} or newer, whose environments are not understood; {known}.",
        )
    if "DO NOT MATCH THE HASHES" in said:
        return BuildRefusal.OTHER_FILES, told
    return code, told


def _site(folder: Path) -> Path:
    """Return the folder of what was installed. Raises BuildFailed where that made another one of it."""
    found = folder.resolve() / "venv" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    if found.resolve() != found:
        raise BuildFailed(BuildRefusal.INSTALL_FAILED, "What it ran moved the folder of installed packages.")
    return found


def _speaks_own_protocol(folder: Path) -> bool:
    found = distributions(path=[str(_site(folder))])
    return any(point.group == OWN_GROUP for one in found for point in one.entry_points)


def manifest_of(folder: Path, order: BuildOrder) -> PackageManifest:
    """Have the package's interpreter say what it offers. Raises BuildFailed."""
    job = json.dumps({"memory": MEMORY, "distribution": order.distribution, "entry": order.entry})
    command = entered(folder, "manifest", job)
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None, timeout=MANIFEST_S, check=False,
            env={"PATH": os.defpath, **QUIET},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BuildFailed(
            BuildRefusal.MANIFEST_TIME_LIMIT, f"It did not say what it offers within {MANIFEST_S:g} s."
        ) from None
    lines = process.stdout.splitlines()
    try:
        said = json.loads(lines[-1]) if lines else {}
    except ValueError:
        said = {}
    if said.get("type") == "broke":
        raise BuildFailed(BuildRefusal.NO_ENVIRONMENTS, said["reason"][:500])
    if process.returncode or not said:
        raise BuildFailed(BuildRefusal.MANIFEST_FAILED, f"Its interpreter ended with code {process.returncode}.")
    return read_manifest(said)


def read_manifest(said: dict[str, Any]) -> PackageManifest:
    """Read what a package says of itself; what cannot be used of it is left out by name. Raises BuildFailed."""
    servers: list[OfferedServer] = []
    left_out = [
        {"name": one["name"], "reason": " ".join(without_paths(one["reason"]).replace("*", "").split())}
        for one in said.get("left_out", ())
    ]
    environments = _usable(OfferedEnvironment, said.get("environments", ()), left_out)
    programs = _usable(OfferedProgram, said.get("programs", ()), left_out)
    commands = _usable(OfferedCommand, said.get("commands", ()), left_out)
    for one in said.get("servers", ()):
        if (server := _server(one, left_out)) is not None:
            servers.append(server)
    if not (environments or programs or servers or commands):
        raise BuildFailed(BuildRefusal.NO_ENVIRONMENTS, f"Nothing that it offers can be used: {left_out[:3]}"[:500])
    usable = {
        "environments": environments, "programs": programs, "servers": servers, "commands": commands,
        "left_out": left_out,
    }  # fmt: skip
    return PackageManifest.model_validate({**said, **usable})


def _usable(
    kind: type[OfferedEnvironment] | type[OfferedProgram] | type[OfferedCommand],
    offers: Iterable[Any],
    left_out: list[dict[str, str]],
) -> list[Any]:
    """Read offers; those that cannot be used are left out with the reason."""
    usable = []
    for one in offers:
        try:
            usable.append(kind.model_validate(one))
        except ValidationError as error:
            left_out.append({"name": str(one.get("name")), "reason": _first(error)})
    return usable


def _server(said: dict[str, Any], left_out: list[dict[str, str]]) -> OfferedServer | None:
    """Read what a package says of a server; None where it has no tool that can be used."""
    tools: dict[str, OfferedTool] = {}
    for one in said["tools"]:
        name = f"{said['name']}: {one['name']}"
        try:
            tool = OfferedTool.model_validate(one)
        except ValidationError as error:
            left_out.append({"name": name[:200], "reason": _first(error)})
        else:
            tools.setdefault(tool.name, tool)
    try:
        return OfferedServer.model_validate({**said, "tools": list(tools.values())})
    except ValidationError as error:
        left_out.append({"name": str(said["name"]), "reason": _first(error)})
    return None


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'/'.join(map(str, first['loc']))}: {first['msg']}"[:300]


QUIET = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "SDL_VIDEODRIVER": "dummy",
    "SDL_AUDIODRIVER": "dummy",
    "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Sets of words have one order; one process, one thread; nothing looks for a screen, or for the model hub."""


def _say(now: str) -> None:
    _write({"now": now})


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main() -> None:
    os.nice(_NICENESS)
    home = Path(sys.argv[1])
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=BuildOrder)
    try:
        _write(build(home, order))
    except BuildFailed as failed:
        _write({"code": failed.code, "detail": str(failed)})
    except OSError as error:
        _write({"code": BuildRefusal.DISK, "detail": error.strerror or type(error).__name__})


if __name__ == "__main__":
    main()
