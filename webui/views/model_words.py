"""What pages say of a model: rows, phases of its import, why one failed and what to do. Pure: values in, values out."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from webui.formats import bytes_text, number

SOURCES = {"package": "Package", "folder": "Folder", "upload": "Upload", "hub": "Hub", "checkpoint": "Checkpoint"}
FETCHES = {
    "hub": ("fetching", "Fetch", "Its files are fetched from the hub, pinned to a commit; pickles are not."),
    "upload": ("fetching", "Fetch", "The uploaded files are fetched from the control plane."),
}
"""Type of a source that an import fetches first -> that phase of it."""
PHASES = (
    ("opening", "Open", "The source is found; a package is made into a model."),
    ("checking", "Check", "Weights, tokenizer and chat template are checked. No code of the model runs."),
    ("storing", "Store", "The weights are copied into the state plane, by their digest."),
)
"""What the import is doing -> its word, and what it means."""
LOST = "Retry; if it happens again, check the node's log."
REASONS = {
    "no_config": ("No config.json", "Name a folder as transformers writes it."),
    "bad_config": ("config.json is unusable", "Save the model again with transformers."),
    "own_code": ("Requires custom code", "Save it as a class of transformers; a model's own code never runs here."),
    "unknown_architecture": ("Unknown architecture", "Choose another model, or plain weights of this one."),
    "is_adapter": ("An adapter, not a model", "Set it as the tuning's adapter in a run, and import its base here."),
    "no_weights": ("No weights", "Put the model's *.safetensors into the folder."),
    "pickle": ("The weights are pickles", "Save them as safetensors; pickles are never opened."),
    "unreadable_weights": ("Unreadable weights", "Copy the file again."),
    "wrong_weights": ("Weights do not match config.json", "Put the files of one model into the folder."),
    "no_tokenizer": ("No tokenizer.json", "Save the model's fast tokenizer in the folder."),
    "bad_tokenizer": ("Unreadable tokenizer", "Copy tokenizer.json again."),
    "vocabulary_too_large": ("Tokenizer does not match", "Use the model's own tokenizer."),
    "special_token_unknown": ("Unknown special token", "Use the model's own tokenizer files."),
    "template_fails": ("The chat template fails", "Repair chat_template.jinja."),
    "template_out_of_bounds": ("The chat template is out of bounds", "Use another chat template."),
    "template_too_slow": ("The chat template takes too long", "Use another chat template."),
    "template_too_large": ("The chat template takes too much memory", "Use another chat template."),
    "too_large": ("Too large for every host", "Add a host with more memory, or choose a smaller model."),
    "checkpoint_missing": ("The checkpoint is gone", "Choose another checkpoint of the run."),
    "checkpoint_damaged": ("The checkpoint is damaged", "Choose another checkpoint of the run."),
    "not_merged": ("The adapter was not merged", "Choose another checkpoint, or train on the adapter as it is."),
    "origin_forbidden": ("No access to the run", "Ask for a role in the project of the run that the checkpoint is of."),
    "unreadable_folder": ("Unreadable folder", "Put the folder where every node can read it, and import it again."),
    "not_made": ("The package was not made into a model", "Install it on every node as the text says."),
    "state_full": ("Disk full", "Free space in the state plane of that node, and import it again."),
    "out_of_memory": ("Out of memory", "Import it on a node with more free memory than its weights take."),
    "time_limit": ("Timed out", "Put the folder on a faster file system."),
    "gave_up": ("Abandoned", LOST),
    "hub_off": ("No hub configured on the node", "Set FLEXMARL_HUB on every node as on the control plane."),
    "hub_unreachable": ("Hub unreachable", "Check the node's connection to the hub, then import it again."),
    "hub_not_found": ("Not found on the hub", "Correct its name, or name the secret of an account with access."),
    "hub_no_revision": ("No such revision", "Name an existing branch, tag or commit."),
    "hub_gated": ("Access not granted", "Ask its owner for access, and name the secret of that account."),
    "secret_missing": ("Secret not found", "Set it on every node, or name another one."),
    "upload_unreachable": (
        "Upload unreachable",
        "Set FLEXMARL_CONTROL_URL on every node.",
    ),
    "upload_gone": ("Upload missing", "Upload the files again."),
    "upload_damaged": ("A file is damaged", "Upload the files again."),
    "fault": ("Import error", LOST),
}
"""Code of a failed import -> what it is called, and what to do."""
OTHER = ("Failed", LOST)


def row(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model as lists and headers show it."""
    open_ = model["finished_at"] is None
    return {
        **model,
        "pill": {"status": model["state"], "reason_text": model["reason_text"]},
        "open": open_,
        "ready": model["state"] == "done",
        "source_word": SOURCES.get(model["source"]["type"], model["source"]["type"]),
        "source_text": source_text(model["source"]),
        "now_word": next((word for name, word, _ in _phases(model) if name == model["now"]), "") if open_ else "",
        "web_url": f"/models/{model['id']}",
    }


def source_text(source: Mapping[str, Any]) -> str:
    """Say where a model came from, without the kind of its source."""
    match source["type"]:
        case "package":
            return " ".join(filter(None, (source["name"], source.get("version"))))
        case "folder":
            return str(source["path"])
        case "upload":
            return f"{len(source['files'])} files"
        case "hub":
            return f"{source['repository']} at {source['revision']}"
        case "checkpoint":
            return f"{source['run']}, step {source['step']}"
        case _:
            return str(source.get("name", ""))


def phases(model: Mapping[str, Any]) -> list[dict[str, str]]:
    """List the steps of an import: what is done, under way and to come; `state` is done, now or later."""
    known = _phases(model)
    names = [name for name, _, _ in known]
    at = names.index(model["now"]) if model["now"] in names else -1
    states = ["done" if place < at else "now" if place == at else "later" for place in range(len(names))]
    return [
        {"name": name, "word": word, "means": means, "state": state}
        for (name, word, means), state in zip(known, states, strict=True)
    ]


def _phases(model: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    fetch = FETCHES.get(model["source"]["type"])
    return (fetch, *PHASES) if fetch else PHASES


def trouble(model: Mapping[str, Any]) -> dict[str, str]:
    """Say what a failed import is called and what to do about it."""
    title, advice = REASONS.get(model["reason"], OTHER)
    return {"title": title, "next": advice}


def facts(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what was found of a model, as words and values; nothing before it is imported."""
    found = model["facts"]
    if not found:
        return []
    special = [f"{name.removesuffix('_token')} {token}" for name, token in found.get("special", {}).items()]
    return [
        *([("Commit", found["commit"])] if found.get("commit") else []),
        ("Architecture", found["architecture"]),
        ("Parameters", number(found["parameters"])),
        ("Weights", f"{bytes_text(found['bytes'])}, {', '.join(found.get('dtypes', [])) or 'unknown type'}"),
        ("Context", f"{number(found['context'])} tokens" if found["context"] else "not stated"),
        ("Licence", model.get("licence") or "not stated by the model"),
        ("Vocabulary", f"{number(found['vocabulary'])} tokens"),
        ("Special tokens", ", ".join(special) or "none"),
        ("Ends a turn", ", ".join(found.get("stop", [])) or "nothing"),
        ("Chat template", "none: the plain one is used" if found.get("plain_template") else "the model's own"),
    ]


def digests(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the SHA-256 digests by which a model's parts are known."""
    found = model["facts"]
    named = (("Content", model["digest"]), ("Tokenizer", found.get("tokenizer")), ("Template", found.get("template")))
    return [(word, str(digest)) for word, digest in named if digest]


def sample(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sample conversation token by token; one whole piece where its tokens are not known."""
    marks = {*found.get("special", {}).values(), *found.get("stop", [])}
    tokens = found.get("sample_tokens") or []
    return [
        {"text": token["text"], "id": token["id"], "special": token["text"].strip() in marks, "odd": place % 2}
        for place, token in enumerate(tokens)
    ]


def used_by(runs: Sequence[Mapping[str, Any]], model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return runs with the policies that are of a model."""
    return [{**run, "of_it": [name for name, of in run["policy_models"].items() if names(of, model)]} for run in runs]


def names(written: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    """Tell whether the model of a policy, as its run was pinned to it, is a version of a model."""
    own = written.get("source", written)
    pinned = (own.get("type"), own.get("project"), own.get("name"), own.get("version"))
    return pinned == ("registered", model["project"], model["name"], model["revision"])


def naming(model: Mapping[str, Any]) -> str:
    """Return how a specification names a version of a model."""
    return f"{{type: registered, name: {model['name']}, version: {model['revision']}, project: {model['project']}}}"


def new_run_url(model: Mapping[str, Any]) -> str:
    """Return where a run with this model begins."""
    return f"/runs/new?{urlencode({'model': model['id']})}"
