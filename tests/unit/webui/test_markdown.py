"""Notes show as people wrote them, and nothing in them runs or loads anything."""

import pytest

from webui.markdown import rendered


def test_what_people_use_is_drawn() -> None:
    made = rendered(
        "# Why\n\n- **bold** and `code`\n- [paper](https://example.org/a)\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    )
    assert "<h1>Why</h1>" in made
    assert "<strong>bold</strong> and <code>code</code>" in made
    assert 'href="https://example.org/a"' in made
    assert 'rel="nofollow noopener noreferrer"' in made
    assert "<td>2</td>" in made


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "![x](https://example.org/pixel.png)",
        "[x](javascript:alert(1))", "<a href=javascript:alert(1)>x</a>", "[x](data:text/html;base64,PHNjcmlwdD4=)",
        "<iframe src=https://example.org></iframe>", "<style>*{display:none}</style>",
        "[x]: javascript:alert(1)\n\n[x]",
        "<svg/onload=alert(1)>", "`<script>`", "<p style='position:fixed'>x</p>",
    ],
)  # fmt: skip
def test_nothing_runs_and_nothing_is_loaded(text: str) -> None:
    made = rendered(text)
    for word in ("<script", "<img", "<iframe", "<style", "<svg", 'href="javascript', 'href="data', "<p style"):
        assert word not in made, made
