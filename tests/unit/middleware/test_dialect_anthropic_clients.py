"""Requests in the shapes that agents send: each is read, whatever they bring beside what is documented."""

import json
from typing import Any

import pytest

from daemon.chat import ChatRequest, CountRequest
from daemon.middleware import anthropic

CACHED = {"type": "ephemeral"}
READ = {
    "name": "Read",
    "description": "Reads a file.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {
            "file_path": {"type": "string", "description": "The absolute path", "pattern": "^/.*"},
            "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        },
        "required": ["file_path"],
        "additionalProperties": False,
    },
}
TASK = {
    "name": "Task",
    "description": "Starts an agent.",
    "input_schema": {"type": "object", "properties": {}},
}


def billing(stamp: str) -> dict[str, Any]:
    return {
        "type": "text",
        "text": f"x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch={stamp};",
    }


def coding(stamp: str = "a5145") -> list[dict[str, Any]]:
    return [
        billing(stamp),
        {"type": "text", "text": "You are a coding agent.", "cache_control": CACHED},
        {"type": "text", "text": "\nBe brief.", "cache_control": {**CACHED, "ttl": "1h", "scope": "global"}},
    ]


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def reading(call_id: str) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": call_id,
        "name": "Read",
        "input": {"file_path": "/a"},
        "caller": {"type": "direct"},
    }


# What Claude Code and others send, without the length of it.
RECORDED: dict[str, dict[str, Any]] = {
    "first turn": {
        "model": "claude-opus-4-6",
        "max_tokens": 32000,
        "stream": True,
        "system": coding(),
        "messages": [
            {
                "role": "user",
                "content": [
                    text("<system-reminder>Today is a day.</system-reminder>"),
                    text("Fix the bug.", cache_control=CACHED),
                ],
            }
        ],
        "tools": [READ, {**TASK, "cache_control": CACHED}],
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    },
    "results and a reminder": {
        "model": "claude-sonnet-4-5-20250929",
        "max_tokens": 32000,
        "stream": True,
        "temperature": 1,
        "system": coding(),
        "messages": [
            {"role": "user", "content": "Fix the bug."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "First a look.", "signature": "EqQB"},
                    text("I'll look."),
                    reading("toolu_01"),
                    reading("toolu_02"),
                ],
            },
            {
                "role": "user",
                "content": [
                    {"tool_use_id": "toolu_01", "type": "tool_result", "content": "1\tpass"},
                    {
                        "tool_use_id": "toolu_02",
                        "type": "tool_result",
                        "content": "<tool_use_error>File does not exist.</tool_use_error>",
                        "is_error": True,
                        "cache_control": CACHED,
                    },
                    text("<system-reminder>Use the todo list.</system-reminder>"),
                ],
            },
        ],
        "tools": [READ],
        "thinking": {"type": "enabled", "budget_tokens": 31999},
    },
    "a system turn among the others": {
        "model": "claude-opus-4-6",
        "max_tokens": 64000,
        "stream": True,
        "system": coding(),
        "messages": [
            {"role": "user", "content": "Fix the bug."},
            {"role": "system", "content": "<reminder>The user opened a file.</reminder>"},
            {"role": "user", "content": [text("Go on.")]},
        ],
        "betas": ["claude-code-20250219", "interleaved-thinking-2025-05-14"],
        "speed": "standard",
    },
    "a title from the small model": {
        "model": "claude-haiku-4-5-20251001",
        "max_tokens": 512,
        "temperature": 0,
        "system": [billing("0f0f0"), text("Write a title of at most 5 words.")],
        "messages": [{"role": "user", "content": [text("Fix the bug.")]}],
        "tools": [],
        "metadata": {"user_id": "u"},
        "output_config": {
            "format": {
                "type": "json_schema",
                "schema": {
                    "type": "object",
                    "properties": {"title": {"type": "string"}},
                    "required": ["title"],
                },
            }
        },
    },
    "a probe of the quota": {
        "model": "claude-haiku-4-5-20251001",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "quota"}],
        "metadata": {"user_id": "u"},
    },
    "the start of an answer": {
        "model": "claude-3-5-haiku-20241022",
        "max_tokens": 512,
        "temperature": 0,
        "messages": [
            {"role": "user", "content": "Is this a new topic?"},
            {"role": "assistant", "content": "{"},
        ],
        "thinking": {"type": "disabled"},
    },
    "a screenshot as a result": {
        "model": "claude-sonnet-4-5",
        "max_tokens": 8192,
        "stream": True,
        "system": "You are a browser agent.",
        "messages": [
            {"role": "user", "content": "Look."},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_1", "name": "shot", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [
                            text("A page."),
                            {
                                "type": "image",
                                "source": {
                                    "type": "base64",
                                    "media_type": "image/png",
                                    "data": "iVBORw0KGgoAAAAA",
                                },
                            },
                        ],
                    }
                ],
            },
        ],
        "tools": [{"name": "shot", "type": "custom", "description": "", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
    "an older search in the history": {
        "model": "claude-opus-4-6",
        "max_tokens": 8192,
        "messages": [
            {"role": "user", "content": "What's new?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "redacted_thinking", "data": "Eq=="},
                    {
                        "type": "server_tool_use",
                        "id": "srvtoolu_1",
                        "name": "web_search",
                        "input": {"query": "x"},
                    },
                    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                    text("Nothing.", citations=[]),
                ],
            },
            {"role": "user", "content": [text("Sure?")]},
        ],
    },
    "tools found by a search": {
        "model": "claude-opus-4-6",
        "max_tokens": 8192,
        "messages": [
            {"role": "user", "content": "Go."},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "toolu_1", "name": "Task", "input": {"query": "read"}}
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_1",
                        "content": [{"type": "tool_reference", "tool_name": "Read"}],
                    },
                    text("Tool loaded."),
                ],
            },
        ],
        "tools": [TASK, {**READ, "defer_loading": True}],
        "diagnostics": {"previous_message_id": None},
        "inference_geo": None,
        "fallbacks": [],
    },
    "a compacted conversation": {
        "model": "claude-opus-4-6",
        "max_tokens": 20000,
        "stream": True,
        "system": coding(),
        "messages": [
            {"role": "user", "content": [text("Summary of what came before.")]},
            {"role": "user", "content": [text("Go on.", cache_control=None)]},
            {"role": "assistant", "content": [text("Done.")]},
            {"role": "user", "content": "Thanks."},
        ],
        "stop_sequences": ["</summary>"],
        "service_tier": "auto",
    },
}

ROLES = {
    "results and a reminder": ["system", "user", "assistant", "tool", "tool", "user"],
    "a system turn among the others": ["system", "user", "system", "user"],
    "the start of an answer": ["user", "assistant"],
    "a screenshot as a result": ["system", "user", "assistant", "tool"],
    "tools found by a search": ["user", "assistant", "tool", "user"],
    "a compacted conversation": ["system", "user", "assistant", "user"],
}


def parse(body: dict[str, Any]) -> ChatRequest:
    request = anthropic.MESSAGES.parse(json.dumps(body).encode())
    assert isinstance(request, ChatRequest)
    return request


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_request_is_read(name: str) -> None:
    body = RECORDED[name]
    request = parse(body)
    assert (request.model, request.sampling.max_tokens) == (body["model"], body["max_tokens"])
    assert [tool.name for tool in request.tools] == [tool["name"] for tool in body.get("tools", [])]
    if name in ROLES:
        assert [message.role for message in request.messages] == ROLES[name]


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_request_is_counted_as_it_is_asked(name: str) -> None:
    count = anthropic.COUNT_TOKENS.parse(json.dumps(RECORDED[name]).encode())
    assert isinstance(count, CountRequest)
    request = parse(RECORDED[name])
    assert (count.chat.messages, count.chat.tools) == (request.messages, request.tools)
    assert (count.chat.thinking, count.chat.format) == (request.thinking, request.format)


def test_thinking_only_where_it_was_asked_for() -> None:
    asked = {name: parse(body).thinking for name, body in RECORDED.items()}
    assert asked.pop("first turn") == "medium"
    assert asked.pop("results and a reminder") is True
    assert set(asked.values()) == {False}


def test_the_stamp_of_a_request_does_not_change_its_prompt() -> None:
    body = RECORDED["first turn"]
    assert parse({**body, "system": coding("aaaaa")}) == parse({**body, "system": coding("bbbbb")})
    assert parse(body).messages[0].text == "You are a coding agent.\n\nBe brief."
