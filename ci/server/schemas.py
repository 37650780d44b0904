#!/usr/bin/env python3
"""Answers to public tool schemas: each must keep to its own.

usage: schemas.py ADDRESS KEY COUNT

The schemas are those of the Berkeley function calling leaderboard (the package `bfcl-eval`), with Python's names of
types as JSON schema has them. Of a thousand at most one may be refused. An answer that ends by itself is held against
its schema by Python's `jsonschema`; one that is cut by its length is counted apart. Where COUNT is more than there are,
each is asked for again with another seed.
"""
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import files
from itertools import cycle, islice

import jsonschema
import openai

address, key, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
TYPES = {"dict": "object", "float": "number", "double": "number", "tuple": "array", "list": "array", "int": "integer",
         "bool": "boolean", "str": "string"}
client = openai.OpenAI(base_url=f"{address}/v1", api_key=key, timeout=600)
model = client.models.list().data[0].id


def converted(value):
    """A schema with the types of JSON schema; one that says "any" says nothing."""
    if isinstance(value, list):
        return [converted(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {name: converted(item) for name, item in value.items()}
    kind = result.get("type")
    if isinstance(kind, str):
        result["type"] = TYPES.get(kind.lower(), kind.lower())
        if result["type"] == "any":
            del result["type"]
    return result


def schemas():
    """Distinct schemas, with their functions' names."""
    seen = set()
    for file in sorted(files("bfcl-eval"), key=str):
        kinds = ("simple_python", "live_simple", "multiple", "parallel", "irrelevance")
        if "/data/BFCL_" not in f"/{file}" or not any(kind in file.name for kind in kinds):
            continue
        for line in file.locate().read_text(encoding="utf-8").splitlines():
            for function in json.loads(line).get("function", []):
                schema = converted(function["parameters"])
                text = json.dumps(schema, sort_keys=True)
                if text not in seen:
                    seen.add(text)
                    yield function["name"], schema


def answer(numbered):
    """What became of one: refused, cut or kept."""
    number, (name, schema) = numbered
    try:
        found = client.chat.completions.create(
            model=model, seed=number, temperature=0.8, max_tokens=200,
            messages=[{"role": "user", "content": f"Call {name} with short arguments of your choice, as JSON."}],
            response_format={"type": "json_schema", "json_schema": {"name": "arguments", "schema": schema}})
    except openai.BadRequestError as error:
        print(f"refused: {name}: {error.message[:200]}")
        return "refused"
    choice = found.choices[0]
    if choice.finish_reason == "length":
        return "cut"
    jsonschema.validate(json.loads(choice.message.content), schema)
    return "kept"


with ThreadPoolExecutor(32) as threads:
    ends = list(threads.map(answer, enumerate(islice(cycle(list(schemas())), count))))
kinds = {kind: ends.count(kind) for kind in ("kept", "cut", "refused")}
print(f"schemas: {len(ends)} tried: {kinds}")
assert kinds["kept"] > 0 and kinds["refused"] * 1000 <= max(len(ends), 1000)
