"""Wheels made on the spot: one of a class that misbehaves as it is told."""

import io
import tarfile
import zipfile
from pathlib import Path

MISCHIEF = '''
"""An environment that does what it is told to."""
import os, socket, sys, time


class Mischief:
    """Does what it is told."""

    def reset(self, what: str = "well", moves: int = 3):
        self.what, self.moves, self.reward = what, moves, 0.0
        if what == "hang_boot":
            time.sleep(3600)
        if what == "die_boot":
            os._exit(3)
        return "Call move." if what != "large_boot" else "x" * 10**8

    def move(self, kind: str = "plain") -> str:
        """Move on.

        Args:
            kind: how.
        """
        self.moves -= 1
        self.reward += 0.25
        what = self.what
        if what == "hang_step":
            time.sleep(3600)
        if what == "spin_step":
            while True:
                pass
        if what == "die_step":
            os._exit(7)
        if what == "flood_step":
            while True:
                print("flood" * 1000, flush=True)
        if what == "large_step":
            return "x" * 10**8
        if what == "nan":
            self.reward = float("nan")
        if what == "garbage":
            for number in range(3, 64):
                try:
                    os.write(number, b"garbage\\n")
                except OSError:
                    pass
        if what == "endless_line":
            for number in range(3, 64):
                try:
                    os.write(number, b"x" * (3 * 2**20))
                except OSError:
                    pass
        if what == "network":
            return repr(socket.create_connection(("1.1.1.1", 80), 5))
        if what == "write_outside":
            open("/usr/written", "w")
        if what == "read_outside":
            return open(os.environ["ASKED"] if "ASKED" in os.environ else "/etc/passwd").read()
        if what == "list":
            return " ".join(sorted(os.listdir("/"))) + " env " + " ".join(sorted(os.environ))
        if what == "processes":
            return str(sorted(int(name) for name in os.listdir("/proc") if name.isdigit())[:3])
        if what == "fork_bomb_behind" and os.fork() == 0:
            while True:
                try:
                    os.fork()
                except OSError:
                    pass
        if what == "fork_bomb":
            while True:
                os.fork()
        if what == "memory":
            self.held = [bytearray(2**26) for _ in range(1000)]
        return f"moved {kind}"

    def get_reward(self) -> float:
        """What it is worth."""
        if self.what == "hang_score":
            time.sleep(3600)
        if self.what == "raise_score":
            raise RuntimeError("no account was kept")
        return self.reward

    def close(self) -> None:
        if self.what == "hang_close":
            time.sleep(3600)
'''
NAME = "mischief_games"


def wheel(
    version: str = "1.0",
    code: str = MISCHIEF,
    name: str = NAME,
    extra: dict[str, str] | None = None,
    beside: dict[str, str] | None = None,
) -> tuple[str, bytes]:
    """Return name and bytes of a wheel of a module and what is `beside` it; `extra` are files of its metadata."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": code,
        **{path if "." in path else f"{path}/__init__.py": text for path, text in (beside or {}).items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **{f"{info}/{path}": text for path, text in (extra or {}).items()},
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0)), text)
    return f"{name}-{version}-py3-none-any.whl", held.getvalue()


def sample_distribution(folder: Path, version: str = "1.0.0", **instead: str) -> Path:
    """Return a source distribution of the sample plug-ins, unchanged, or a later version with other words in it."""
    root, name = Path(__file__).resolve().parents[2] / "examples" / "plugins", f"flexmarl_sample_plugins-{version}"
    made = folder / f"{name}.tar.gz"
    with tarfile.open(made, "w:gz") as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file() and path.suffix in {".py", ".toml", ".md"} and "build" not in path.parts:
                text = path.read_text(encoding="utf-8")
                for before, after in {'version = "1.0.0"': f'version = "{version}"', **instead}.items():
                    text = text.replace(before, after)
                about = tarfile.TarInfo(f"{name}/{path.relative_to(root)}")
                about.size = len(text.encode())
                archive.addfile(about, io.BytesIO(text.encode()))
    return made
