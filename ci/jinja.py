#!/usr/bin/env python3
"""Renders the templates of src/text/template/tests/jinja.json by Jinja2, in the environment of `transformers`.

`python3 ci/jinja.py` compares: the file holds `[template, output]`, `null` where Jinja2 refuses it.
`python3 ci/jinja.py --write` puts Jinja2's outputs in; new templates may be added with any output.
Needs the Python package jinja2 (3.1.6 made the file).
"""
import datetime
import json
import pathlib
import sys

from jinja2 import ext, nodes
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

FILE = pathlib.Path(__file__).parent.parent / "src/text/template/tests/jinja.json"
NOW = datetime.datetime.fromtimestamp(1_709_210_096, datetime.timezone.utc)
MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": " Hi <b> & \"you\" "},
]
TOOLS = [{"name": "f", "x": {"b": 1, "a": [1, 2.5, None, True, "it's"]}, "items": [1, 2]}]


class Generation(ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def refuse(message):
    raise TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    env.filters["tojson"] = to_json
    env.globals |= {"raise_exception": refuse, "strftime_now": NOW.strftime}
    return env


def render(env, source):
    try:
        variables = {"messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True}
        return env.from_string(source).render(bos_token="<s>", eos_token="</s>", **variables)
    except Exception:
        return None


def main():
    env = environment()
    cases = json.loads(FILE.read_text())
    rendered = [[source, render(env, source)] for source, _ in cases]
    if "--write" in sys.argv:
        lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in rendered)
        FILE.write_text(f"[\n{lines}\n]\n")
    different = [old[0] for old, new in zip(cases, rendered) if old != new]
    print(f"{len(cases)} templates, {len(different)} differ from the file", *different, sep="\n")
    sys.exit(1 if different and "--write" not in sys.argv else 0)


main()
