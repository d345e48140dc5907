"""Writes the part of Tabler's style sheet that our pages use: `python scripts/trim_tabler.py SOURCE`.

SOURCE is `vendor/tabler/tabler.min.css` beside the part, unchanged from the npm package @tabler/core.
A rule stays when every class it names occurs as a word in our templates, scripts or views, so that the page looks the
same with the part as with the whole. A test says when a page takes up a class that the part lacks: run it again then.
"""

import re
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "webui/static/webui/vendor/tabler/tabler.trimmed.css"
SCRIPTS = ("webui/static/webui/js/*.js", "webui/templatetags/*.py")
ATTRIBUTE = re.compile(r'class="([^"]*)"')
CLASS = re.compile(r"\.(-?[_a-zA-Z][\w-]*(?:\\.[\w-]*)*)")
WORD = re.compile(r"[A-Za-z_][\w-]*")


def used_words() -> set[str]:
    """Every word of our pages; a class that pages carry is among them."""
    texts = [path.read_text(encoding="utf-8") for pattern in SCRIPTS for path in ROOT.glob(pattern)]
    for path in ROOT.glob("webui/templates/**/*.html"):
        texts += ATTRIBUTE.findall(path.read_text(encoding="utf-8"))
    return {word for text in texts for word in WORD.findall(text)}


def blocks(text: str) -> list[tuple[str, str]]:
    """Split a minified sheet into (head, body) of its top-level rules; statements such as @charset have no body."""
    found, at = [], 0
    while at < len(text):
        brace, semicolon = text.find("{", at), text.find(";", at)
        if brace < 0:
            break
        if 0 <= semicolon < brace:
            found.append((text[at:semicolon], ""))
            at = semicolon + 1
            continue
        depth, end = 1, brace + 1
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        found.append((text[at:brace], text[brace + 1 : end - 1]))
        at = end
    return found


def split(head: str) -> list[str]:
    """Split a list of selectors at its commas, but not inside parentheses."""
    found, depth = [""], 0
    for letter in head:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def trimmed(text: str, words: set[str]) -> str:
    """Keep the rules whose classes are all used."""
    kept = []
    for head, body in blocks(text):
        if head.startswith(("@media", "@supports", "@layer", "@container")):
            inner = trimmed(body, words)
            kept += [f"{head}{{{inner}}}"] if inner else []
        elif head.startswith("@keyframes"):
            kept += [f"{head}{{{body}}}"] if head.split()[-1] in words else []
        elif head.startswith("@"):
            kept += [f"{head}{{{body}}}"] if body and head.startswith("@font-face") else []
        else:
            selectors = [one for one in split(head) if all(name in words for name in CLASS.findall(one))]
            kept += [f"{','.join(selectors)}{{{body}}}"] if selectors else []
    return "".join(kept)


def without_unused_variables(text: str, ours: str) -> str:
    """Drop declarations of custom properties that nobody reads, until none is left."""
    declared = r"(?<=[{;])(--[\w-]+):((?:[^;{}()\"]|\((?:[^()]|\([^()]*\))*\)|\"[^\"]*\")*)(;|(?=\}))"
    while True:
        read = frozenset(re.findall(r"var\((--[\w-]+)", text + ours))
        names = {name for name, _, _ in re.findall(declared, text)}
        if names <= read:
            return re.sub(r"[^{}]+\{\}", "", text)
        text = re.sub(declared, partial(_kept, read), text)


def _kept(read: frozenset[str], found: re.Match[str]) -> str:
    return found.group(0) if found.group(1) in read else ""


def main(source: Path) -> None:
    """Write the part."""
    text = re.sub(r"/\*.*?\*/", "", source.read_text(encoding="utf-8"), flags=re.S)
    head = "/* Rules of @tabler/core (MIT, see LICENSE.txt) that our pages use, by scripts/trim_tabler.py. */\n"
    ours = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "webui/static/webui/css").glob("*.css"))
    kept = without_unused_variables(trimmed(text, used_words()), ours)
    TARGET.write_text(head + kept + "\n", encoding="utf-8")
    sys.stdout.write(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size} bytes of {len(text)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
