"""A dataset from a file on the researcher's disk to a run that trains on it, only in the browser."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.gym_endpoint import row
from tests.support.packing import packed, repacked
from tests.support.row_exports import folder_of, trained_row

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]


def test_a_file_is_imported_searched_scored_and_trained_on(
    seeded: Any, visit: Callable[..., Any], tmp_path: Path
) -> None:
    rows = [{"question": f"What is {n}+{n}?", "answer": 2 * n} for n in range(30)]
    bad, good = tmp_path / "bad.jsonl", tmp_path / "doubles.jsonl"
    bad.write_text('{"question": "fine", "answer": "x"}\n{"question": "", "answer": "y"}\n')
    good.write_text("\n".join(map(json.dumps, rows)))
    guest = visit(seeded)
    guest.sign_in()
    page = guest.page
    guest.goto("/datasets")
    page.get_by_role("link", name="Import dataset").first.click()
    page.get_by_label("File", exact=True).set_input_files(bad)
    page.locator("#refused", has_text="Line 2: question is '', not a text.").wait_for()
    assert page.get_by_role("button", name="Import").is_disabled()
    page.get_by_label("File", exact=True).set_input_files(good)
    page.locator("#examples", has_text="What is 1+1?").wait_for()
    page.get_by_label("Held out for evaluation").select_option("count")
    page.get_by_label("Amount").fill("0")
    page.get_by_label("Amount").blur()
    page.locator("#counts", has_text="30 rows to train on, none held out: no run can be evaluated on it").wait_for()
    page.get_by_label("Amount").fill("4")
    page.get_by_label("Amount").blur()
    page.locator("#counts", has_text="26 rows to train on, 4 held out").wait_for()
    page.get_by_label("Name").fill("Doubles")
    page.get_by_role("button", name="Import").click()
    page.locator("[data-error='/name']", has_text="lower-case").wait_for()
    page.get_by_label("Name").fill("doubles")
    page.get_by_role("button", name="Import").click()
    page.get_by_role("heading", name="doubles v1").wait_for()

    page.get_by_label("Words of the prompt").fill("29")
    page.get_by_label("Words of the prompt").press("Enter")
    page.locator("#dataset-rows tbody tr", has_text="What is 29+29?").wait_for()
    assert page.locator("#dataset-rows tbody tr").count() == 1
    page.get_by_label("Row", exact=True).fill("30")
    page.get_by_label("Reply").fill("It is 58.")
    page.get_by_role("button", name="Score").click()
    page.locator("#worth", has_text="0.50").wait_for()
    assert page.locator("#why dt").all_text_contents() == ["exact", "number"]
    assert [said[:4] for said in page.locator("#why dd").all_text_contents()] == ["0.00", "1.00"]
    guest.keep("dataset-page")

    page.get_by_role("link", name="New run").click()
    dataset = page.locator("[data-pointer='/environment/dataset']")
    dataset.wait_for(state="attached")
    assert "doubles" in dataset.input_value()
    # The template evaluates more rows than are held out: the page asks for those that there are.
    page.locator("#start[aria-disabled=false]").wait_for()
    page.locator("#start").click()
    page.wait_for_url(re.compile(r"/runs/[a-z]+-"), timeout=30_000)
    page.goto(f"{seeded.url}/datasets")
    page.get_by_role("link", name="doubles").click()
    page.get_by_role("heading", name="Runs that use it").wait_for()
    assert page.get_by_text("No run that you can read uses it").count() == 0
    page.get_by_role("button", name="Archive", exact=True).click()
    page.get_by_role("button", name="Archive the dataset").click()
    page.get_by_role("button", name="Restore").wait_for()


def test_rows_of_a_run_are_imported_refused_by_name_and_archived(
    seeded: Any, visit: Callable[..., Any], tmp_path: Path
) -> None:
    good, bad = tmp_path / "rows.tar", tmp_path / "bad.tar"
    good.write_bytes(packed(folder_of(tmp_path / "rows", [trained_row(number) for number in range(6)])))
    bad.write_bytes(repacked({"export.json": b"{}"}))
    guest = visit(seeded)
    guest.sign_in()
    page = guest.page
    guest.goto("/datasets")
    card = page.locator("#row-sets")
    card.get_by_label("Export, as a tar file").set_input_files(bad)
    card.get_by_label("Name").fill("good_run")
    card.get_by_role("button", name="Import rows").click()
    card.locator("#rows-refused", has_text="flexmarl-rows 2 and 3 are read").wait_for()
    card.get_by_label("Export, as a tar file").set_input_files(good)
    card.get_by_role("button", name="Import rows").click()
    listed = card.locator("tbody tr", has_text="good_run")
    listed.get_by_text("3 of 6 rows solved").wait_for()
    guest.keep("imported-rows")
    listed.get_by_role("button", name="Archive").click()
    page.get_by_role("button", name="Archive the rows").click()
    listed.get_by_text("archived").wait_for()


@pytest.mark.full
def test_data_of_nemo_gym_are_imported_as_they_are_and_named_beside_their_server(
    seeded: Any, visit: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join(json.dumps(row(f"Add {n} and read.", n)) for n in range(30)))
    guest = visit(seeded)
    guest.sign_in()
    page = guest.page
    guest.goto("/datasets/import")
    page.get_by_label("File", exact=True).set_input_files(file)
    page.locator("#examples", has_text="system: You count.").wait_for()
    holds = page.get_by_label("The column holds")
    assert holds.input_value() == "request", "the name of the column says so"
    holds.select_option("messages")
    page.locator("#refused", has_text="not a list of 1 to 256 messages").wait_for()
    holds.select_option("request")
    page.locator("#examples", has_text="user: Add 1 and read.").wait_for()
    guest.keep("import-gym-page")
    page.get_by_label("Name").fill("counter")
    page.get_by_role("button", name="Import").click()
    page.get_by_role("heading", name="counter v1").wait_for()
    page.get_by_role("link", name="New run").click()
    dataset = page.locator("[data-pointer='/environment/dataset']")
    dataset.wait_for(state="attached")
    assert "counter" in dataset.input_value()
    page.locator("#g-environment > summary").click()
    url = page.locator("[data-pointer='/environment/url']")
    url.fill("gym.example.org")
    url.blur()
    page.locator("#start[aria-disabled=true]").wait_for()
    url.fill("https://gym.example.org")
    url.blur()
    page.locator("#start[aria-disabled=false]").wait_for()
    guest.keep("new-gym-run-page")
