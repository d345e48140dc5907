"""The playground in the browser: an engine that starts, a reply token by token, refusals, keys; both themes, a phone.

The web process stands alone here, so the test answers for the engine, in the shapes that the API's own tests hold.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.visitor import WHOLE

pytestmark = [pytest.mark.browser, pytest.mark.services, pytest.mark.slow]

FINISHED = 0


class Engine:
    """Answers what the page asks: first that it is starting, then with a reply, then with a refusal."""

    def __init__(self, page: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.refusal: tuple[int, dict[str, Any]] | None = (503, {"code": "engine_starting", "message": "starting"})
        page.route("**/v1/completions", self._answer)

    def _answer(self, route: Any) -> None:
        body = json.loads(route.request.post_data)
        self.asked.append(body)
        assert route.request.headers["x-csrftoken"]
        if self.refusal:
            status, error = self.refusal
            self.refusal = None
            route.fulfill(status=status, json={"error": {"request_id": "r-1", "param": None, **error}})
            return
        tokens = ["5", " <b>7</b>", " accept"]
        logprobs = {"tokens": tokens, "token_logprobs": [-0.1, -2.0, -0.5], "top_logprobs": None, "text_offset": [0]}
        choice = {"text": "".join(tokens), "logprobs": logprobs, "token_ids": [5, 7, 9], "finish_reason": "length"}
        usage = {"completion_tokens": 3, "prompt_tokens": 4, "total_tokens": 7}
        route.fulfill(json={"model": body["model"], "choices": [choice], "usage": usage})


def test_a_talk(seeded: Any, visit: Callable[..., Any]) -> None:
    guest = visit(seeded)
    guest.sign_in()
    engine = Engine(guest.page)
    guest.goto(f"/runs/{seeded.keys[FINISHED]}/trajectories/playground")
    page = guest.page
    page.locator("[data-observation]").nth(1).click()
    field = page.locator("#observation")
    assert field.input_value() == page.locator("[data-observation]").nth(1).get_attribute("data-observation")
    field.press("Control+Enter")
    page.get_by_text("Starting an engine").wait_for()
    reply = page.locator("#replies article").first
    reply.wait_for()
    assert reply.locator(".tok .k").all_text_contents() == ["5", " <b>7</b>", " accept"]
    assert reply.locator("b", has_text="7").count() == 0, "text of models stays text"
    assert reply.locator(".tok .k.lp0, .tok .k.lp1").count() >= 1
    assert engine.asked[0] == engine.asked[1], "the same question again until somebody answers"
    assert engine.asked[0]["model"].startswith(f"{seeded.keys[FINISHED]}/")
    assert engine.asked[0]["allowed_words"] is not None
    reply.locator(".tok").focus()
    page.keyboard.press("ArrowRight")
    assert "−2.00" in reply.locator("[data-facts]").inner_text()
    assert "in loss" not in reply.locator("[data-facts]").inner_text()
    assert guest.seen_in("playground-talk", WHOLE) == {}

    engine.refusal = (
        400,
        {"code": "unknown_words", "param": "prompt", "message": "prompt: the agent does not know 'x'"},
    )
    page.get_by_role("button", name="Sample another reply").click()
    page.get_by_text("the agent does not know").wait_for()
    assert field.get_attribute("aria-invalid") == "true"
    assert guest.seen_in("playground-refused", WHOLE) == {}
    page.locator("[data-word]").first.click()
    assert field.get_attribute("aria-invalid") is None
    assert [text for text in guest.complaints if "503" not in text and "400" not in text] == []
