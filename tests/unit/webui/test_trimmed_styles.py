"""The part of Tabler's style sheet that pages load has every class of Tabler's that a template carries."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TABLER = ROOT / "webui/static/webui/vendor/tabler"
ATTRIBUTE = re.compile(r'class="([^"]*)"')
CLASS = re.compile(r"\.(-?[_a-zA-Z][\w-]*)")


def classes_of(name: str) -> set[str]:
    return set(CLASS.findall((TABLER / name).read_text(encoding="utf-8")))


def test_no_class_of_a_template_was_cut_away() -> None:
    templates = list((ROOT / "webui/templates").rglob("*.html"))
    texts = [text for path in templates for text in ATTRIBUTE.findall(path.read_text(encoding="utf-8"))]
    carried = {word for text in texts for word in re.sub(r"\{[{%].*?[%}]\}", " ", text).split()}
    assert "btn" in carried
    missing = carried & (classes_of("tabler.min.css") - classes_of("tabler.trimmed.css"))
    assert missing == set(), "run scripts/trim_tabler.py"
