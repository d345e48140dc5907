"""Whatever a foreign chat template does, it ends soon, makes little, and what it did is said."""

import json
import resource
import subprocess
import sys
import time

import pytest

from flexmarl.language import bounded_templates
from flexmarl.language.chat_format import SAMPLE
from flexmarl.language.messages import Message
from flexmarl.language.templates import TemplateError, render_text

ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a loop over letters": "{% for a in 'x' * 4000000 %}{% for b in 'x' * 4000000 %}{% endfor %}{% endfor %}",
    "macros in loops": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}",
    "filters in loops": "{% for a in range(99999) %}{{ (range(99999) | map('string') | list | length) }}{% endfor %}",
    "long texts searched": "{% set s = 'x' * 8000000 %}{% for a in range(99999) %}{{ 'y' in s }}{% endfor %}",
    "only after a conversation grew": (
        "{% if messages | length > 3 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        "{% endif %}"
    ),
}
LARGE = {
    "repeated": "{{ 'x' * 10 ** 12 }}",
    "a long list": "{{ ([0] * 10 ** 9) | length }}",
    "doubled by joining": "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubled by adding": "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "doubled by printing": (
        "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set t %}{{ n.s }}{{ n.s }}{% endset %}"
        "{% set n.s = t %}{% endfor %}"
    ),
    "doubled by replacing": "{% set n = namespace(s='xx') %}{% for a in range(99) %}"
    "{% set n.s = n.s.replace('x', n.s) %}{% endfor %}",
    "doubled by a filter": "{% set n = namespace(s='xx') %}{% for a in range(99) %}"
    "{% set n.s = n.s | replace('x', n.s) %}{% endfor %}",
    "lists that hold a list twice": "{% set n = namespace(s=[1]) %}{% for a in range(99) %}"
    "{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
    "objects that hold one twice": "{% set n = namespace(s={}) %}{% for a in range(99) %}"
    "{% set n.s = {'a': n.s, 'b': n.s} %}{% endfor %}{{ n.s | tojson }}",
    "objects made by a call": "{% set n = namespace(s=1) %}{% for a in range(99) %}"
    "{% set n.s = dict(a=n.s, b=n.s) %}{% endfor %}{{ n.s }}",
    "spaces that hold one twice": "{% set n = namespace(s=1) %}{% for a in range(99) %}"
    "{% set n.s = namespace(a=n.s, b=n.s) %}{% endfor %}{{ n.s }}",
    "one text many times as JSON": "{{ (['x' * 8000000] * 9000) | tojson }}",
    "one text many times joined": "{{ (['x' * 8000000] * 9000) | join }}",
    "one text many times by a method": "{{ ''.join(['x' * 8000000] * 9000) }}",
    "one text many times in a format": "{{ '%s' * 9000 % (('x' * 8000000,) * 9000) }}",
    "one text many times in braces": "{{ ('{0}' * 9000).format('x' * 8000000) }}",
    "a wide format": "{{ '%999999999d' % 1 }}",
    "a width from a value": "{{ '%*d' % (999999999, 1) }}",
    "wide braces": "{{ '{:999999999}'.format(1) }}",
    "braces in braces": "{{ '{:{}}'.format(1, 999999999) }}",
    "wide indents": "{{ ('\n' * 9999) | indent(999999) }}",
    "wide JSON": "{{ [[[[1]]]] | tojson(indent=999999999) }}",
    "a long number": "{% set n = namespace(s=3) %}{% for a in range(99) %}{% set n.s = n.s * n.s %}{% endfor %}",
    "a high power": "{{ 9 ** (9 ** 9) }}",
    "kept slices": "{% set s = 'x' * 8000000 %}" + "".join(f"{{% set a{n} = s[{n}:] %}}" for n in range(200)),
    "kept lists": "{% set s = 'x' * 8000000 %}" + "".join(f"{{% set a{n} = s | list %}}" for n in range(200)),
    "fixed text in loops": "{% for a in range(99999) %}{% for b in range(9) %}"
    + "x" * 9999
    + "{% endfor %}{% endfor %}",
    "fixed text of macros": "{% macro m() %}"
    + "x" * 99999
    + "{% endmacro %}{% for a in range(99999) %}{{ m() }}{% endfor %}",
}
REFUSED = {
    "{{ 'x'.center(9) }}": "calls center",
    "{{ 'x'.zfill(9) }}": "calls zfill",
    "{{ 'x' | center(9) }}": "No filter named 'center'",
    "{{ lipsum(n=9) }}": "'lipsum' is undefined",
    "{% for a in [] recursive %}{% endfor %}": "recursive loop",
}
LONG = (*SAMPLE, Message("assistant", "yes"), Message("user", "and?"))
MEMORY = 2**31
BUSY_S = 8.0
"""What a machine whose cores others hold may add; a template that nobody ended takes minutes."""
CHILD = "from tests.unit.language.test_bounded_templates import attack_all; attack_all()"


def attack_all() -> None:
    """Render each template of `LARGE` in this process, of little memory; print how long it took and how it ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for name, template in LARGE.items():
        began, said = time.process_time(), "rendered"
        try:
            render_text(template, LONG)
        except TemplateError as error:
            said = str(error)
        print(json.dumps([name, time.process_time() - began, said]))


@pytest.mark.parametrize("template", ENDLESS.values(), ids=ENDLESS)
def test_a_template_that_would_not_end_is_ended(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_templates, "MOST_SECONDS", 0.2)
    began = time.process_time()
    with pytest.raises(TemplateError, match="out of bounds"):
        render_text(template, LONG)
    assert time.process_time() - began < 1.0


@pytest.mark.slow
def test_a_template_that_would_fill_the_memory_is_ended() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    ended = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, _, _ in ended] == list(LARGE)
    assert {name: said for name, _, said in ended if "is out of bounds: " not in said} == {}
    assert {name: seconds for name, seconds, _ in ended if seconds > bounded_templates.MOST_SECONDS + BUSY_S} == {}


@pytest.mark.parametrize(("template", "said"), REFUSED.items())
def test_what_a_chat_template_has_no_use_for_is_refused_by_name(template: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        render_text(template, LONG)


def test_a_conversation_of_thousands_of_messages_is_within_bounds() -> None:
    template = (
        "{% set n = namespace(kept=[], text='') %}{% for message in messages %}{% set n.kept = n.kept + [message] %}"
        "{% endfor %}{% for message in n.kept %}{{ '<|im_start|>' ~ message.role ~ '\n' + message.content | trim }}"
        "{{ loop.index if loop.last else loop.length }}{% if loop.first %}!{% endif %}{% endfor %}"
    )
    messages = [Message("user" if turn % 2 else "assistant", f"{turn} " * 200) for turn in range(2000)]
    text = render_text(template, messages)
    assert text.count("<|im_start|>") == 2000
    assert text.endswith("1999" + "2000")
