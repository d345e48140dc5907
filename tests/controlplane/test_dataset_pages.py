"""Pages of datasets: the list, the form of an import, and one dataset with its rows; who may see them."""

import pytest

from tests.controlplane.test_datasets import save, sums

pytestmark = pytest.mark.django_db


def test_a_dataset_is_listed_and_shown_with_its_rows_and_versions(api, browser) -> None:
    assert "No datasets yet" in browser.get("/datasets").content.decode()
    save(api, sums(40), note="first")
    version = save(api, sums(60)).json()
    assert "sums" in browser.get("/datasets?q=sum").content.decode()
    assert "No datasets match" in browser.get("/datasets?q=other").content.decode()
    url = f"/datasets/{version['dataset']}"
    page = browser.get(url).content.decode()
    assert "What is 0+1?" in page
    assert "60 rows" in page
    assert "v2" in page
    assert "?version=1" in page
    assert "40 rows" in browser.get(f"{url}?version=1").content.decode()
    found = browser.get(f"{url}?q=33").content.decode()
    assert "What is 33+1?" in found
    assert "What is 0+1?" not in found
    assert "import it anew with a larger share" not in page
    none = save(api, sums(20), split={"type": "share", "share": 0}).json()
    assert none["held_out"] == 0
    assert "import it anew with a larger share" in browser.get(url).content.decode()
    url = f"{url}?version=2&"
    held_out = browser.get(f"{url}held_out=true").content.decode()
    assert f"{version['held_out']} row" in held_out
    assert browser.get(f"/datasets/{version['dataset']}?version=7").status_code == 404
    assert "Invalid filter" in browser.get(f"{url}held_out=maybe").content.decode()


def test_new_run_offers_datasets_and_begins_with_the_one_that_is_named(api, browser) -> None:
    version = save(api, sums(40)).json()
    page = browser.get(f"/runs/new?template=chat_dataset&dataset={version['dataset']}")
    named = {"name": "sums", "version": 1, "project": "default"}
    assert page.context["data"]["dataset"] == {"named": named, "held_out": version["held_out"]}
    assert [one.label for one in page.context["datasets"]] == ["sums v1"]
    assert 'data-pointer="/environment/dataset"' in page.content.decode()
    assert 'data-pointer="/environment/scores"' in page.content.decode()
    assert browser.get("/runs/new?template=chat_dataset&dataset=x").status_code == 404


def test_only_who_may_write_imports_and_strangers_see_nothing(api, person) -> None:
    from django.test import Client

    version = save(api, sums(40)).json()
    viewer, stranger = Client(), Client()
    viewer.force_login(person("viewer"))
    assert "Import dataset" not in viewer.get("/datasets").content.decode()
    assert viewer.get("/datasets/import").status_code == 403
    assert "What is 0+1?" in viewer.get(f"/datasets/{version['dataset']}").content.decode()
    from flexmarl.controlplane.accounts.models import Project

    Project.objects.create(name="other")
    stranger.force_login(person("editor", project="other"))
    assert stranger.get(f"/datasets/{version['dataset']}").status_code == 404
    assert "sums" not in stranger.get("/datasets").content.decode()


def test_the_import_offers_a_hub_where_there_is_one_and_says_the_setting_where_not(browser, settings) -> None:
    settings.HUB = ""
    page = browser.get("/datasets/import?source=hub").content.decode()
    assert "No hub is configured" in page
    assert "FLEXMARL_HUB" in page
    assert 'name="repository"' not in page
    settings.HUB = "https://hub.example.org"
    page = browser.get("/datasets/import?source=hub&repository=us/school").content.decode()
    assert "A dataset of\n        https://hub.example.org" in page
    assert 'value="us/school"' in page
