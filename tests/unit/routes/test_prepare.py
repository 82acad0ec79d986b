"""What a model brings along is laid under what the request says."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from daemon.chat import ChatRequest, CompletionRequest, LoadOptions, Message, Sampling, Text
from daemon.errors import InvalidRequest
from daemon.names import ModelName
from daemon.routes.prepare import prepare, weights
from daemon.store.blobs import Digest
from daemon.store.models import Model
from daemon.store.summary import Summary

MODEL = Model(
    name=ModelName("m"),
    digest="0" * 64,
    size=10,
    modified_at=datetime(2026, 1, 1, tzinfo=UTC),
    path=Path("/store/blob"),
    model_digest=Digest.of(b"m"),
    projectors=(),
    summary=Summary({"general.architecture": "llama", "llama.context_length": 128}, {}, ()),
    config={},
    system=None,
    template=None,
    params={},
    messages=(),
    licenses=(),
    capabilities=("completion",),
)
USER = Message("user", (Text("hi"),))
CHAT = ChatRequest(model="m", messages=(USER,))


def model(**changes: Any) -> Model:
    return replace(MODEL, **changes)


def messages(model: Model, *sent: Message) -> list[tuple[str, str]]:
    prepared = prepare(replace(CHAT, messages=sent), model, Sampling())
    assert isinstance(prepared, ChatRequest)
    return [(message.role, message.text) for message in prepared.messages]


def test_the_request_wins_over_the_model_and_the_model_over_the_api() -> None:
    request = replace(CHAT, sampling=Sampling(top_k=1), load=LoadOptions(threads=3))
    params = {
        "top_k": 2,
        "temperature": 0.2,
        "num_ctx": 512,
        "num_thread": 1,
        "stop": ["x"],
    }
    prepared = prepare(request, model(params=params), Sampling(top_k=3, temperature=0.8, top_p=0.9))
    assert prepared.sampling == Sampling(top_k=1, temperature=0.2, top_p=0.9, stop=("x",))
    assert prepared.load == LoadOptions(window=512, threads=3)


def test_the_models_system_prompt_comes_first_unless_the_request_has_one() -> None:
    own = model(system="be kind")
    assert messages(own, USER) == [("system", "be kind"), ("user", "hi")]
    theirs = Message("system", (Text("be brief"),))
    assert messages(own, theirs, USER) == [("system", "be brief"), ("user", "hi")]


def test_the_models_examples_come_before_the_conversation() -> None:
    examples = ({"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"})
    assert messages(model(messages=examples, system="add"), USER) == [
        ("system", "add"),
        ("user", "1+1"),
        ("assistant", "2"),
        ("user", "hi"),
    ]


def test_raw_text_gets_no_messages() -> None:
    request = CompletionRequest(model="m", prompt="hi")
    assert prepare(request, model(system="be kind"), Sampling()) == request


def test_a_model_that_only_embeds_cannot_chat() -> None:
    with pytest.raises(InvalidRequest, match='"m" does not support chat'):
        prepare(CHAT, model(capabilities=("embedding",)), Sampling())


def test_two_names_of_one_file_share_their_weights() -> None:
    one, other = weights(model()), weights(model(name=ModelName("n")))
    assert one.key == other.key
    assert (one.path, one.trained_window, one.size) == (Path("/store/blob"), 128, 10)
