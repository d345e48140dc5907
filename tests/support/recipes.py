"""The recipes of CONTRIBUTING.md: read, and applied to a copy of the tree as they are written."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "CONTRIBUTING.md"
_STEP = re.compile(
    r"^\*\*Step (?P<number>\d+)\.\*\* (?P<words>.+?)\n\n```\w+\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
_NEW = re.compile(r"New file `(?P<path>[^`]+)`")
_INSERT = re.compile(r"In `(?P<path>[^`]+)`,\s(?P<where>above|below)\s`(?P<anchor>[^`]+)`")
_ABOVE_ROW = re.compile(r'In `(?P<path>[^`]+)`,\sabove\sthe\sline\sthat\sbegins\swith\s"(?P<anchor>[^"]+)"')
_REPLACE = re.compile(r"In `(?P<path>[^`]+)`,\sreplace\s`(?P<anchor>[^`]+)`\swith")


class RecipeError(Exception):
    """A step that cannot be followed: its words say no place, or the place is not there exactly once."""


@dataclass(frozen=True, slots=True)
class Step:
    """One numbered step: what to do with a code block."""

    number: int
    words: str
    code: str

    @property
    def path(self) -> str:
        """The file that it makes or changes. Raises RecipeError when it names none."""
        for form in (_NEW, _ABOVE_ROW, _INSERT, _REPLACE):
            if found := form.match(self.words):
                return found["path"]
        raise RecipeError(f"step {self.number} names no place: {self.words[:80]}")

    def apply(self, tree: Path) -> None:
        """Change the tree. Raises RecipeError naming what cannot be found."""
        if new := _NEW.match(self.words):
            path = tree / new["path"]
            if path.exists():
                raise RecipeError(f"step {self.number}: {new['path']} exists already")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.code)
        elif found := _ABOVE_ROW.match(self.words):
            self._insert(tree / found["path"], found["anchor"], above=True, whole=False)
        elif found := _INSERT.match(self.words):
            self._insert(tree / found["path"], found["anchor"], above=found["where"] == "above", whole=True)
        elif found := _REPLACE.match(self.words):
            path, anchor = tree / found["path"], found["anchor"]
            self._once(path, path.read_text().count(anchor), anchor)
            _write(path, path.read_text().replace(anchor, self.code.rstrip("\n")))
        else:
            raise RecipeError(f"step {self.number} names no place: {self.words[:80]}")

    def _insert(self, path: Path, anchor: str, *, above: bool, whole: bool) -> None:
        lines = path.read_text().splitlines(keepends=True)
        at = [i for i, line in enumerate(lines) if (line.rstrip("\n") == anchor if whole else line.startswith(anchor))]
        self._once(path, len(at), anchor)
        place = at[0] if above else at[0] + 1
        _write(path, "".join([*lines[:place], self.code, *lines[place:]]))

    def _once(self, path: Path, count: int, anchor: str) -> None:
        if count != 1:
            raise RecipeError(f"step {self.number}: {path.name} has {anchor!r} {count} times, not once")


def _write(path: Path, text: str) -> None:
    """Put a file in the place of another, which may be a link to one of another tree."""
    path.unlink()
    path.write_text(text)


def recipe(title: str, text: str | None = None) -> list[Step]:
    """Return the steps under a heading. Raises RecipeError when they are not numbered from 1 on."""
    text = DOCUMENT.read_text() if text is None else text
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    steps = [Step(int(m["number"]), " ".join(m["words"].split("\n")), m["code"]) for m in _STEP.finditer(section)]
    if [step.number for step in steps] != list(range(1, section.count("**Step ") + 1)) or not steps:
        raise RecipeError(f"the steps of {title!r} cannot be read")
    return steps


def titles() -> list[str]:
    """List the recipes of the document."""
    return re.findall(r"^## (Add .+)$", DOCUMENT.read_text(), re.MULTILINE)


def copy_of_the_tree(folder: Path) -> Path:
    """Copy what git tracks, as it is now, and return the folder."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    for name in filter(None, names):
        source, target = ROOT / name.decode(), folder / name.decode()
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return folder
