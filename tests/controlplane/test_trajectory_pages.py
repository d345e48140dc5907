"""Pages of trajectories, group compare and checkpoints, read without a browser: text escaped, filters lenient, queries
pinned. And what their comparison and their texts are made of."""

import pytest
from django.test import Client

from flexmarl.contracts.rulings import Ruling, RulingKind
from flexmarl.contracts.status import RunStatus
from flexmarl.controlplane.common.store import store_connection
from flexmarl.controlplane.telemetry.trajectories.decoding import token_texts
from flexmarl.controlplane.telemetry.trajectories.episode_groups import MAX_WORDS, TurnText, aligned, difference
from flexmarl.store.control.decisions import Logged, _write_rulings
from flexmarl.store.reads.report import consistency_report
from tests.support.markup import markup
from tests.support.played import play, remember_check
from tests.support.statements import at_most
from webui.views.checkpoints import listed
from webui.views.checks import TITLES
from webui.views.comparison import picked

pytestmark = pytest.mark.django_db
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def run(editor, make_run):
    run = make_run(editor, RunStatus.RUNNING)
    play(run)
    return run


@pytest.fixture
def browser(editor):
    client = Client()
    client.force_login(editor)
    return client


def read(browser, run, path, status=200):
    answer = browser.get(f"/runs/{run.key}/{path}")
    assert answer.status_code == status, answer.content[:500]
    return markup(answer)


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("trajectories", 20),
        ("trajectories?step=1&reward__gte=0.5&ordering=-reward&label=any", 20),
        ("trajectories/1-1-1", 20),
        ("trajectories/1-1-1?view=scores", 23),
        ("trajectories/compare?draw=1", 20),
        ("parts/trajectories?step=1", 8),
        ("checkpoints", 29),
        ("performance", 58),
        ("performance/timeline", 17),
        ("logs", 30),
        ("config/attempts", 12),
    ],
)
def test_the_number_of_statements_of_a_page_is_bounded(browser, run, path, most) -> None:
    read(browser, run, path)
    with at_most(most):
        read(browser, run, path)


def test_pages_count_steps_from_one(browser, run) -> None:
    assert "Step 1, group 1, episode 1" in read(browser, run, "trajectories/1-1-1")
    assert 'id="it-1-1-1"' in read(browser, run, "trajectories?step=1")
    assert 'id="it-1-1-1"' not in read(browser, run, "trajectories?step=2")


@pytest.mark.parametrize(
    "path", ["trajectories/1-1-1", "trajectories/1-1-1?view=scores", "trajectories/compare?draw=1"]
)
def test_hostile_text_is_escaped(browser, run, path) -> None:
    store_connection().execute(
        "UPDATE store.episode SET task = jsonb_build_object('title', %s::text, 'facts', jsonb_build_object(%s::text, "
        "%s::text)), reason = %s WHERE run_id = %s",
        [HOSTILE, HOSTILE, HOSTILE, HOSTILE, run.no],
    )
    html = read(browser, run, path)
    assert HOSTILE not in html
    assert "&lt;img src=x" in html


def test_the_scores_say_what_became_of_the_group(browser, run) -> None:
    conn = store_connection()
    [cohort] = conn.execute(
        "SELECT cohort FROM store.episode WHERE run_id = %s AND draw = 1 LIMIT 1", [run.no]
    ).fetchone()
    for draw, reason in ((1, f"nobody solved it: {HOSTILE} is injected"), (2, "another group")):
        said = Ruling(RulingKind.GROUP_RESCUED, reason, "", cohort, f"draw:{draw}", cause="injected")
        _write_rulings(conn, run.no, [Logged(draw, 1.0, said)])
    html = read(browser, run, "trajectories/1-1-1?view=scores")
    assert "Nobody solved it: &lt;img src=x onerror=alert(1)&gt; is injected." in html
    assert "nother group" not in html


@pytest.mark.parametrize(
    "query",
    [
        "step=x",
        "reward__gte=nan",
        "ordering=colour",
        "version=12",
        "origin=both",
        "after=1_2",
        "agent=solver",
        "solved=2",
    ],
)
def test_an_illegal_value_filters_nothing(browser, run, query) -> None:
    assert read(browser, run, f"trajectories?{query}").count('class="it"') == 4


def test_a_broken_chain_is_said_where_it_broke(browser, run) -> None:
    html = read(browser, run, "trajectories/1-1-1")
    assert html.index("The chain of solver broke: oldest messages left out.") < html.index('id="turn-1"')
    assert "broke: oldest" not in read(browser, run, "trajectories/0-1-1")


def test_what_was_said_is_found_and_stays_when_its_tokens_are_gone(browser, run) -> None:
    assert 'id="it-1-1-1"' in read(browser, run, "trajectories?said=BIG+sma&said_by=solver&broken=shortened")
    assert 'class="it"' not in read(browser, run, "trajectories?said=small+square+red")
    store_connection().execute("UPDATE store.sample SET payload = NULL WHERE run_id = %s", [run.no])
    assert "square big small" in read(browser, run, "trajectories/1-1-1")


def test_who_may_not_read_trajectories_sees_no_page(client_of, person, run) -> None:
    client = Client()
    client.force_login(person("auditor"))
    assert client.get(f"/runs/{run.key}/trajectories").status_code in (403, 404)


def test_a_viewer_gets_no_label_button(person, run) -> None:
    client = Client()
    client.force_login(person("viewer"))
    html = markup(client.get(f"/runs/{run.key}/trajectories/1-1-1"))
    assert "data-label-open" not in html
    assert "data-compare-open" in html


def test_checkpoints_say_what_is_on_disk_and_which_checks_passed(browser, run) -> None:
    remember_check(run)
    html = read(browser, run, "checkpoints")
    assert f"{{type: checkpoint, run: {run.key}, step: " in html
    assert "runs/1/best" not in html, "where it lies on its node is nobody's business"
    assert "from_pretrained" in html
    for title in ("The log has no gap", "No sample is trained twice"):
        assert title in html


def test_events_name_the_promises_as_checkpoints_do(browser, run) -> None:
    remember_check(run)
    html = read(browser, run, "logs")
    assert "The log has no gap" in html
    assert "log gapless" not in html


def test_an_adapter_is_said_to_be_one(browser, run) -> None:
    assert "AutoModelForCausalLM" in read(browser, run, "checkpoints")
    assert "peft" not in read(browser, run, "checkpoints")
    run.spec["policies"]["solver"] = {"tuning": {"type": "lora", "rank": 8}}
    run.save()
    html = read(browser, run, "checkpoints")
    assert "adapter_model.safetensors" in html
    assert "With the package peft installed" in html


def test_a_run_that_ended_tells_of_no_step_behind_its_last(browser, run) -> None:
    assert "Micro-batches of step" in read(browser, run, "parts/summary")
    store_connection().execute("UPDATE store.run_state SET finished_at = clock_timestamp() WHERE run_id = %s", [run.no])
    assert "Micro-batches of step" not in read(browser, run, "parts/summary")


def test_every_check_of_the_report_has_a_title(run) -> None:
    assert {check.name for check in consistency_report(store_connection(), run.no)} == set(TITLES)


def test_what_was_let_go_is_not_offered_and_why_the_rest_stays_is_said() -> None:
    row = {"versions": {"solver": 4}, "node": "box", "policies": {}, "kept_by": ["last", "every"]}
    states = ("whole", "damaged", "removing", "removed")
    found = listed([{**row, "step": 9, "state": state} for state in states], {"policies": {}})
    assert [(one["state"], one["may_download"]) for one in found] == [("whole", True), ("damaged", False)]
    assert [word for word, _ in found[0]["rules"]] == ["newest", "for good"]


def group(*scores):
    members = [{"id": f"1-{i}-1", "member": i, "status": "finished", "team_score": s} for i, s in enumerate(scores)]
    return {"members": members}


def test_best_and_worst_keep_the_one_that_was_open() -> None:
    six = group(0.9, 0.1, 0.5, 0.8, 0.2, 0.6)
    assert picked(six, "ends", "") == ["1-0-1", "1-3-1", "1-4-1", "1-1-1"]
    assert "1-5-1" in picked(six, "ends", "1-5-1")
    assert len(picked(group(*[0.5] * 12), "all", "")) == 8
    failed = {"members": [*six["members"], {"id": "1-6-1", "member": 6, "status": "failed", "team_score": 0.0}]}
    assert "1-6-1" not in picked(failed, "all", "")


def test_turns_are_aligned_by_role_and_the_first_difference_is_named() -> None:
    best = [TurnText("planner", 1, "add it"), TurnText("solver", 1, "3 h"), TurnText("planner", 1, "done")]
    worst = [TurnText("planner", 1, "add it"), TurnText("solver", 1, "4 h")]
    other = [TurnText("planner", 1, "add it"), TurnText("planner", 1, "again")]
    found = aligned({"a": best, "b": worst, "c": other})
    assert [(row["no"], row["role"]) for row in found["rows"]] == [
        (1, "planner"), (2, "solver"), (2, "planner"), (3, "planner"),
    ]  # fmt: skip
    assert found["first_difference"] == {"no": 2, "role": "solver"}
    solver = found["rows"][1]["cells"]
    assert solver[0]["parts"] == [["3 ", True], ["h", False]]
    assert solver[1]["parts"] == [["4 ", True], ["h", False]]
    assert solver[2] is None
    assert aligned({"a": best, "b": best})["first_difference"] is None


def test_parts_joined_are_the_text() -> None:
    pairs = [
        ("a b c", "a x c"),
        ("", "a"),
        ("a", ""),
        ("  two  spaces ", "two spaces"),
        ("line\nbreak x", "line\nbreak y"),
    ]
    for text, other in pairs:
        assert "".join(part for part, _ in difference(text, other)) == text
    long = " ".join(map(str, range(MAX_WORDS + 5)))
    assert difference(long, long.replace("7 ", "x ", 1))[0] == [" ".join(map(str, range(7))) + " ", False]


def test_tokens_joined_are_the_response() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"<e>": 0, "red": 1, "round": 2}, unk_token="<e>"))
    assert token_texts(words, [1, 2, 1]) == ["red", " round", " red"]
    alphabet = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    pieces = Tokenizer(models.BPE(alphabet, []))
    pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    ids = pieces.encode("a b<script>").ids
    assert "".join(token_texts(pieces, ids)) == "a b<script>"
    assert token_texts(None, [4, 5]) == ["4", " 5"]
