#!/usr/bin/env python3
"""Drives a server with the clients that people use: `clients.py ADDRESS KEY`. Fails at the first thing that is wrong."""
import json
import sys
import typing

import anthropic
from langchain_openai import ChatOpenAI
import litellm
import openai
import pydantic

address, key = sys.argv[1:3]
client = openai.OpenAI(base_url=f"{address}/v1", api_key=key)
model = client.models.list().data[0].id
messages = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Name a colour."}]
fixed = dict(model=model, messages=messages, max_tokens=12, seed=7, temperature=0.8)


def valid(found):
    """The object, if it has every field that the client's own types ask for: clients do not check by themselves."""
    return type(found).model_validate_json(found.to_json(exclude_unset=True))


def chat():
    whole = client.chat.completions.create(**fixed)
    assert whole.choices[0].message.role == "assistant" and whole.choices[0].finish_reason in ("stop", "length")
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    chunks = list(client.chat.completions.create(**fixed, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def choices_and_stops():
    several = client.chat.completions.create(**fixed, n=3)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    text = client.chat.completions.create(**fixed).choices[0].message.content
    assert several.choices[0].message.content == text
    if len(text) > 2:
        stopped = client.chat.completions.create(**fixed, stop=[text[2]])
        assert stopped.choices[0].message.content == text.split(text[2])[0]
    again = client.chat.completions.create(**fixed)
    assert again.choices[0].message.content == text, "the same seed, the same answer"


def log_probabilities():
    found = client.chat.completions.create(**fixed, logprobs=True, top_logprobs=4).choices[0].logprobs.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 4 for token in found)
    old = client.completions.create(model=model, prompt="The sky is", echo=True, logprobs=3, max_tokens=4, temperature=0)
    lists = old.choices[0].logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset)
    assert lists.token_logprobs[0] is None and old.choices[0].text.startswith("The sky is")


def errors():
    for kind, change in [(openai.BadRequestError, dict(temperature=-3)), (openai.NotFoundError, dict(model="another")),
                         (openai.BadRequestError, dict(response_format={"type": "nonsense"}))]:
        try:
            client.chat.completions.create(**{**fixed, **change})
        except kind as error:
            assert error.param == next(iter(change)), error
        else:
            raise AssertionError(f"{change} was accepted")
    try:
        openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError:
        pass
    else:
        raise AssertionError("a wrong key was accepted")


class Colour(pydantic.BaseModel):
    name: typing.Literal["red", "green"]


def responses():
    asked = dict(model=model, instructions="You are brief.", input="Name a colour.", max_output_tokens=12, temperature=0)
    whole = valid(client.responses.create(**asked))
    assert whole.status in ("completed", "incomplete") and whole.output_text
    assert whole.usage.input_tokens == client.responses.input_tokens.count(
        model=model, instructions="You are brief.", input="Name a colour.").input_tokens
    events = [valid(event) for event in client.responses.create(**asked, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == f"response.{whole.status}"
    deltas = (event.delta for event in events if event.type == "response.output_text.delta")
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    if whole.status == "completed":
        with client.responses.stream(**asked) as stream:
            assert stream.get_final_response().output_text == whole.output_text
    parsed = client.responses.parse(model=model, input="Name a colour.", text_format=Colour, max_output_tokens=60)
    assert parsed.output_parsed.name in ("red", "green")
    asked["input"] = [{"role": "user", "content": "Name a colour."}, *whole.output, {"role": "user", "content": "Another."}]
    assert client.responses.create(**asked).usage.input_tokens > whole.usage.input_tokens
    try:
        client.responses.create(model=model, input="a", previous_response_id="resp_1")
    except openai.BadRequestError as error:
        assert error.param == "previous_response_id"
    else:
        raise AssertionError("a response that nobody has was accepted")


def anthropics():
    claude = anthropic.Anthropic(base_url=address, api_key=key, max_retries=0)
    asked = dict(model=model, system="You are brief.", messages=messages[1:], max_tokens=12, extra_body={"temperature": 0})
    whole = valid(claude.messages.create(**asked))
    events = [valid(event) for event in claude.messages.create(**asked, stream=True)]
    assert events[0].type == "message_start" and events[-1].type == "message_stop"
    assert whole.stop_reason in ("end_turn", "max_tokens") and whole.content[0].type == "text"
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    assert text == last.content[0].text == whole.content[0].text and last.stop_reason == whole.stop_reason
    counted = claude.messages.count_tokens(model=model, system="You are brief.", messages=messages[1:]).input_tokens
    for usage in (whole.usage, last.usage):
        assert counted == usage.input_tokens + usage.cache_read_input_tokens and usage.output_tokens > 0
    asked["messages"] = [*messages[1:], {"role": "assistant", "content": whole.content}, messages[1]]
    assert claude.messages.create(**asked).role == "assistant"
    parsed = claude.messages.parse(model=model, messages=messages[1:], max_tokens=60, output_format=Colour)
    assert parsed.parsed_output.name in ("red", "green")
    for kind, change in [(anthropic.BadRequestError, dict(max_tokens=-3)), (anthropic.NotFoundError, dict(model="another"))]:
        try:
            claude.messages.create(**{**asked, **change})
        except kind as error:
            assert next(iter(change)) in error.body["error"]["message"], error
        else:
            raise AssertionError(f"{change} was accepted")


def others():
    langchain = ChatOpenAI(base_url=f"{address}/v1", api_key=key, model=model, max_tokens=8, temperature=0, seed=1)
    whole = langchain.invoke("Name a colour.")
    assert whole.usage_metadata["output_tokens"] > 0
    assert "".join(chunk.content for chunk in langchain.stream("Name a colour.")) == whole.content
    light = dict(model=f"openai/{model}", messages=messages, api_base=f"{address}/v1", api_key=key, max_tokens=8, seed=1)
    whole = litellm.completion(**light).choices[0].message.content
    parts = litellm.completion(**light, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole


for check in (chat, choices_and_stops, log_probabilities, errors, responses, anthropics, others):
    check()
    print(f"{check.__name__}: ok", flush=True)
print(json.dumps({"model": model, "openai": openai.__version__, "anthropic": anthropic.__version__}))
