"""What a model brings along is laid under what the request says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.chat import (
    Audio,
    ChatRequest,
    CompletionRequest,
    EmbedRequest,
    Image,
    LoadOptions,
    LoadRequest,
    Message,
    Part,
    RerankRequest,
    Sampling,
    Text,
    TokenRequest,
    Tool,
    ToolChoice,
)
from daemon.errors import InvalidRequest
from daemon.names import ModelName
from daemon.routes.prepare import prepare, purpose_of, ranks, weights
from daemon.scheduler.state import Purpose
from daemon.store.models import Model
from daemon.store.summary import Summary
from tests.fakes.models import MODEL

USER = Message("user", (Text("hi"),))
CHAT = ChatRequest(model="m", messages=(USER,))
TOOLS = (Tool("weather", "", {}), Tool("add", "", {}))
ALL = ("completion", "tools", "thinking", "vision", "audio", "insert")


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


# ---- what a model cannot do


def chat(request: ChatRequest, *capabilities: str, strict: bool = True) -> ChatRequest:
    able = model(capabilities=("completion", *capabilities))
    prepared = prepare(request, able, Sampling(), strict=strict)
    assert isinstance(prepared, ChatRequest)
    return prepared


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (replace(CHAT, tools=TOOLS), '"m" does not support tools: its chat template cannot carry them'),
        (replace(CHAT, thinking=True), '"m" does not support thinking'),
        (replace(CHAT, thinking="high"), '"m" does not support thinking'),
        (CompletionRequest(model="m", prompt="a", suffix="b"), '"m" does not support insert'),
        (CompletionRequest(model="m", prompt="a", suffix=""), '"m" does not support insert'),
        (
            CompletionRequest(model="m", prompt="a", images=(Image("AA==", "image/png"),)),
            '"m" does not support images',
        ),
    ],
    ids=["tools", "thinking", "effort", "suffix", "empty-suffix", "images-in-text"],
)
def test_what_the_model_cannot_do_is_refused(request_: TokenRequest, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        prepare(request_, MODEL, Sampling())
    assert prepare(request_, model(capabilities=ALL), Sampling()) == request_


@pytest.mark.parametrize(
    ("part", "needed"),
    [(Image("AA==", "image/png"), "vision"), (Audio("AA==", "wav"), "audio")],
    ids=["image", "audio"],
)
def test_a_picture_or_sound_in_any_turn_needs_a_projector(part: Part, needed: str) -> None:
    seen = Message("user", (Text("look"), part))
    request = replace(CHAT, messages=(seen, Message("assistant", (Text("nice"),)), USER))
    for capabilities in ((), ({"vision": "audio", "audio": "vision"}[needed],)):
        with pytest.raises(InvalidRequest, match=f"has no {needed} projector"):
            chat(request, *capabilities)
    assert chat(request, needed) == request


@pytest.mark.parametrize("wish", [False, None], ids=["off", "unsaid"])
def test_not_to_think_is_no_matter_for_a_model_that_cannot(wish: bool | None) -> None:
    request = replace(CHAT, thinking=wish)
    assert chat(request) == request


def test_where_a_wish_to_think_is_only_a_wish_it_is_dropped() -> None:
    request = replace(CHAT, thinking=True, thinking_budget=100)
    assert chat(request, strict=False) == CHAT
    assert chat(request, "thinking", strict=False) == request


def test_tools_that_must_not_be_used_are_not_there() -> None:
    """Then it is no matter that the template cannot carry them."""
    unused = replace(CHAT, tools=TOOLS, tool_choice=ToolChoice("none"))
    assert chat(unused).tools == ()
    assert chat(unused, "tools").tools == ()


@pytest.mark.parametrize(
    ("tools", "choice", "said"),
    [
        ((), ToolChoice("required"), "asks for a call, and the request has no tools"),
        (TOOLS, ToolChoice("required", "nobody"), "names 'nobody', which is none of the tools"),
    ],
    ids=["no-tools", "unknown"],
)
def test_a_choice_that_cannot_be_kept_to(tools: tuple[Tool, ...], choice: ToolChoice, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        chat(replace(CHAT, tools=tools, tool_choice=choice), "tools")


def test_a_choice_that_can() -> None:
    for choice in (ToolChoice(), ToolChoice("required"), ToolChoice("required", "add")):
        request = replace(CHAT, tools=TOOLS, tool_choice=choice)
        assert chat(request, "tools") == request


def test_a_conversation_that_goes_on_has_had_its_examples() -> None:
    examples = ({"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"})
    prepared = prepare(replace(CHAT, context=(1, 2)), model(messages=examples), Sampling())
    assert isinstance(prepared, ChatRequest)
    assert prepared.messages == (USER,)


# ---- what is loaded


def test_another_engine_for_vectors_than_for_text() -> None:
    keys = {purpose: weights(MODEL, purpose).key for purpose in Purpose}
    assert len({*keys.values()}) == 3
    assert keys[Purpose.GENERATE] == weights(MODEL).key


def test_a_model_of_text_gives_the_mean_and_one_of_vectors_knows_its_own_way() -> None:
    own = model(capabilities=("embedding",))
    assert weights(MODEL, Purpose.EMBED).pooling == "mean"
    assert weights(own, Purpose.EMBED).pooling is None
    assert weights(MODEL).pooling is None


@pytest.mark.parametrize(
    "changes",
    [
        {"adapters": (Path("/store/lora"),)},
        {"jinja_template": Path("/store/template")},
        {"projectors": (Path("/store/mmproj"),)},
        {"adapters": (Path("/store/template"),)},
    ],
    ids=["adapter", "template", "projector", "another-kind"],
)
def test_the_same_file_with_something_else_beside_it_is_another_engine(changes: dict[str, Any]) -> None:
    changed = weights(model(**changes))
    others = [MODEL, *(model(jinja_template=Path("/store/template")) for _ in range("adapters" in changes))]
    assert all(weights(other).key != changed.key for other in others)
    assert changed.key == weights(model(**changes, name=ModelName("n"))).key


def test_what_a_model_brings_along_reaches_the_engine() -> None:
    made = weights(model(adapters=(Path("/store/lora"),), jinja_template=Path("/store/template")))
    assert (made.adapters, made.template) == ((Path("/store/lora"),), Path("/store/template"))
    assert weights(MODEL).template is None


def test_a_projector_is_only_loaded_for_text() -> None:
    seeing = model(projectors=(Path("/store/mmproj"),))
    assert weights(seeing).projector == Path("/store/mmproj")
    assert weights(seeing, Purpose.EMBED).projector is None


def test_what_a_request_needs_an_engine_for() -> None:
    own = model(capabilities=("embedding",))
    assert purpose_of(EmbedRequest(model="m", inputs=("a",)), MODEL) is Purpose.EMBED
    assert purpose_of(RerankRequest(model="m", query="a", documents=("b",)), MODEL) is Purpose.RERANK
    assert purpose_of(LoadRequest(model="m"), MODEL) is Purpose.GENERATE
    assert purpose_of(LoadRequest(model="m", embed=True), MODEL) is Purpose.EMBED
    assert purpose_of(LoadRequest(model="m"), own) is Purpose.EMBED


def test_only_a_model_that_was_made_for_it_ranks() -> None:
    def pooled(kind: int) -> Model:
        metadata = {**MODEL.summary.metadata, "llama.pooling_type": kind}
        return model(summary=Summary(metadata, {}, ()))

    assert ranks(pooled(4))
    assert not ranks(pooled(1))
    assert not ranks(MODEL)
