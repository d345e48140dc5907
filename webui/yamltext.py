"""The YAML of a specification and the line of each value in it. Pure; never builds anything but plain values."""

from typing import Any

import yaml

Lines = dict[str, int]


def dump(document: dict[str, Any]) -> str:
    """Write a document as people would: block style, keys in the document's order."""
    return str(yaml.safe_dump(document, sort_keys=False, default_flow_style=False, allow_unicode=True, width=100))


def lines(text: str) -> Lines:
    """Map the JSON pointer of each key to its line, from 0. Empty when the text is not YAML."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return {}
    found: Lines = {}
    if root is not None:
        _walk(root, "", found)
    return found


def _walk(node: yaml.Node, pointer: str, found: Lines) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = f"{pointer}/{str(key.value).replace('~', '~0').replace('/', '~1')}"
            found[here] = key.start_mark.line
            _walk(value, here, found)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            found[f"{pointer}/{index}"] = value.start_mark.line
            _walk(value, f"{pointer}/{index}", found)
