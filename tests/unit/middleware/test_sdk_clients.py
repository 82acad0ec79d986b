"""An error before the answer keeps its words and its status in the official clients of all three APIs."""

import importlib
from typing import Any

import anthropic as anthropic_sdk
import httpx
import ollama as ollama_sdk
import openai as openai_sdk
import pytest

from daemon.errors import ModelNotFound
from daemon.middleware import anthropic, ollama, openai
from daemon.middleware.dialect import Dialect

MESSAGES: Any = [{"role": "user", "content": "hi"}]


def http_of(sdk: Any) -> Any:
    """The HTTP library that a version of an SDK uses."""
    bases: tuple[type, ...] = sdk.DefaultHttpxClient.__mro__
    names = [base.__module__.partition(".")[0] for base in bases]
    return importlib.import_module(next(name for name in names if name.startswith("httpx")))


def test_errors_keep_their_words_in_all_clients() -> None:
    error = ModelNotFound("m")

    def refuse(http: Any, dialect: Dialect) -> Any:
        reply = dialect.error(error)
        return http.MockTransport(lambda _: http.Response(reply.status, content=reply.body))

    client: Any = ollama_sdk.Client("http://mgr.test", transport=refuse(httpx, ollama.CHAT))
    with pytest.raises(ollama_sdk.ResponseError, match=r"^model 'm' not found") as refused:
        client.chat("m", MESSAGES)
    assert refused.value.status_code == 404
    client.close()

    http = http_of(openai_sdk)
    with openai_sdk.OpenAI(
        base_url="http://mgr.test/v1",
        api_key="none",
        http_client=http.Client(transport=refuse(http, openai.CHAT)),
    ) as openai_one:
        with pytest.raises(openai_sdk.NotFoundError) as missing:
            openai_one.chat.completions.create(model="m", messages=MESSAGES)
        assert missing.value.code == "model_not_found"

    http = http_of(anthropic_sdk)
    with (
        anthropic_sdk.Anthropic(
            base_url="http://mgr.test",
            api_key="none",
            http_client=http.Client(transport=refuse(http, anthropic.MESSAGES)),
        ) as anthropic_one,
        pytest.raises(anthropic_sdk.NotFoundError, match="model 'm' not found"),
    ):
        anthropic_one.messages.create(model="m", max_tokens=9, messages=MESSAGES)
