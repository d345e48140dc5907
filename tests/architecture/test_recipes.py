"""The recipes of CONTRIBUTING.md, followed literally in a copy of the tree: the result works, and no step is spare."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.forms import form
from tests.support.recipes import RecipeError, Step, copy_of_the_tree, recipe, titles

CHECKS = {
    "Add a loss": "loss",
    "Add an environment": "environment",
    "Add a page": "page",
    "Add a command": "command",
}
"""Recipe -> the script in tests/support/recipe_checks that fails unless its result works."""
MOST_FILES = {"Add a command": 6}
PRODUCT = ("platform/", "webui/", "workers/")
STEPS = [(title, step.number) for title in CHECKS for step in recipe(title)]
TRIED = form(short=STEPS[::8], full=STEPS)
"""Steps that are left out in turn."""


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_tree(tmp_path_factory.mktemp("clean"))


def followed(clean: Path, tree: Path, steps: list[Step]) -> Path:
    """Make another tree of the clean one, whose files are links until a step changes them, and follow the steps."""
    for folder, _, files in os.walk(clean):
        place = tree / Path(folder).relative_to(clean)
        place.mkdir(parents=True, exist_ok=True)
        for name in files:
            os.link(Path(folder) / name, place / name)
    for step in steps:
        step.apply(tree)
    return tree


def check(tree: Path, title: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a recipe in a tree, whose code is the only code of the product that it sees."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(tree / "platform"), str(tree))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "DJANGO_SETTINGS_MODULE": "flexmarl.controlplane.settings.test",
    }
    script = tree / "tests" / "support" / "recipe_checks" / f"{CHECKS[title]}.py"
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_every_recipe_is_followed() -> None:
    assert titles() == list(CHECKS)


@pytest.mark.parametrize(("title", "most"), MOST_FILES.items())
def test_a_recipe_touches_few_files_of_the_product(title: str, most: int) -> None:
    touched = {step.path for step in recipe(title) if step.path.startswith(PRODUCT)}
    assert len(touched) <= most, sorted(touched)


@pytest.mark.slow
@pytest.mark.parametrize("title", CHECKS)
def test_following_a_recipe_works(title: str, clean: Path, tmp_path: Path) -> None:
    tree = followed(clean, tmp_path, recipe(title))
    done = check(tree, title)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for rule in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *rule, "."], cwd=tree, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize(("title", "number"), TRIED)
def test_no_step_is_spare(title: str, number: int, clean: Path, tmp_path: Path) -> None:
    try:
        tree = followed(clean, tmp_path, [step for step in recipe(title) if step.number != number])
    except RecipeError:
        return  # a later step builds on it
    assert check(tree, title).returncode != 0, f"{title} works without step {number}"


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (Step(1, "In `a.py`, below `gone`, add it.", "x\n"), "step 1: a.py has 'gone' 0 times"),
        (Step(2, "In `a.py`, replace `twice` with:", "x\n"), "step 2: a.py has 'twice' 2 times"),
        (Step(3, "New file `a.py`.", "x\n"), "step 3: a.py exists already"),
        (Step(4, "Somewhere, add it.", "x\n"), "step 4 names no place"),
    ],
)
def test_a_step_that_cannot_be_followed_says_why(step: Step, problem: str, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("twice\ntwice\n")
    with pytest.raises(RecipeError, match=problem):
        step.apply(tmp_path)


def test_steps_are_numbered_from_one() -> None:
    text = "\n## Add it\n\n**Step 2.** New file `a.py`.\n\n```python\nx\n```\n"
    with pytest.raises(RecipeError, match="cannot be read"):
        recipe("Add it", text)
