#!/usr/bin/env python3
"""Calls tools through the clients that agents use: `tools.py ADDRESS KEY`. Fails at the first thing that is wrong.

The model need not be clever: each call is required, so that the server's grammar makes it one of the tool's.
"""
import json
import sys
import typing

import anthropic
import instructor
import openai
import pydantic
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

address, key = sys.argv[1:3]
client = openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
claude = anthropic.Anthropic(base_url=address, api_key=key, max_retries=0)
model = client.models.list().data[0].id
QUESTION = {"role": "user", "content": "How is the weather in Oslo?"}


class Weather(pydantic.BaseModel, extra="forbid"):
    """The weather of a city."""

    city: typing.Literal["Oslo", "Rome"]
    days: int = pydantic.Field(ge=1, le=9)


SCHEMA = Weather.model_json_schema()
TOOL = {"type": "function", "function": {"name": "Weather", "description": "The weather of a city.", "parameters": SCHEMA}}
ANTHROPIC = {"name": "Weather", "description": "The weather of a city.", "input_schema": SCHEMA}


def chat():
    asked = dict(model=model, messages=[QUESTION], tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
                 max_tokens=80, seed=3)
    choice = client.chat.completions.create(**asked).choices[0]
    call = choice.message.tool_calls[0]
    assert choice.finish_reason == "tool_calls" and call.function.name == "Weather"
    Weather.model_validate_json(call.function.arguments)
    with client.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert streamed.function.arguments == call.function.arguments
    parsed = client.chat.completions.parse(**{**asked, "tools": [openai.pydantic_function_tool(Weather)]})
    assert isinstance(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)
    told = [QUESTION, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    assert client.chat.completions.create(**{**asked, "messages": told, "tool_choice": "none"}).choices[0].message.content


def responses():
    tool = {"type": "function", **TOOL["function"], "strict": True}
    asked = dict(model=model, input=[QUESTION], tools=[tool], max_output_tokens=80)
    whole = client.responses.create(**asked, tool_choice="required", parallel_tool_calls=False)
    call = next(item for item in whole.output if item.type == "function_call")
    Weather.model_validate_json(call.arguments)
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain."}
    asked["input"] = [QUESTION, *whole.output, answer]
    counted = client.responses.input_tokens.count(model=model, input=asked["input"], tools=[tool]).input_tokens
    again = client.responses.create(**asked, tool_choice="none")
    assert again.output_text and again.usage.input_tokens == counted


def messages():
    asked = dict(model=model, messages=[QUESTION], tools=[ANTHROPIC], max_tokens=80)
    whole = claude.messages.create(**asked, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    call = next(block for block in whole.content if block.type == "tool_use")
    assert whole.stop_reason == "tool_use" and Weather.model_validate(call.input)
    with claude.messages.stream(**asked, tool_choice={"type": "tool", "name": "Weather"}) as stream:
        assert Weather.model_validate(stream.get_final_message().content[-1].input)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Rain."}
    asked["messages"] = [QUESTION, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
    usage = claude.messages.create(**asked, tool_choice={"type": "none"}).usage
    del asked["max_tokens"]
    counted = claude.messages.count_tokens(**asked).input_tokens
    assert counted == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)


def instructors():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        found = instructor.from_openai(client, mode=mode).chat.completions.create(
            model=model, messages=[QUESTION], response_model=Weather, max_retries=0, max_tokens=80)
        assert isinstance(found, Weather), mode


def langchains():
    for chain in (ChatOpenAI(base_url=f"{address}/v1", api_key=key, model=model, max_tokens=80, max_retries=0),
                  ChatAnthropic(base_url=address, api_key=key, model=model, max_tokens=80, max_retries=0)):
        call = chain.bind_tools([Weather], tool_choice="Weather").invoke(QUESTION["content"]).tool_calls[0]
        assert Weather.model_validate(call["args"]) and call["name"] == "Weather"
        assert isinstance(chain.with_structured_output(Weather).invoke(QUESTION["content"]), Weather)


def cached():
    """Each turn of a conversation finds the one before in the cache."""
    told, before, least = [QUESTION], 0, 1.0
    for turn in range(10):
        found = client.chat.completions.create(
            model=model, messages=told, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=80,
            temperature=0)
        usage, message = found.usage, found.choices[0].message
        if before:
            least = min(least, usage.prompt_tokens_details.cached_tokens / before)
        before = usage.prompt_tokens
        told += [message] + [{"role": "tool", "tool_call_id": call.id, "content": f"Rain, {turn} degrees."}
                             for call in message.tool_calls]
    print(f"cached: at least {least:.3f} of the prompt before, ten turns with tools")
    assert least >= 0.95


for check in (chat, responses, messages, instructors, langchains, cached):
    check()
    print(f"{check.__name__} with tools: ok", flush=True)
print(json.dumps({"model": model, "instructor": instructor.__version__}))
