"""Whatever the body, every dialect answers with a request or with an error of ours that has a 4xx or 501."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.chat import (
    ChatRequest,
    CompletionRequest,
    EmbedRequest,
    Request,
    RerankRequest,
)
from daemon.errors import InvalidRequest, NotSupported
from daemon.middleware import anthropic, ollama, openai, openai_completions, openai_embeddings
from daemon.middleware.dialect import Dialect
from daemon.middleware.responses import ResponsesDialect
from daemon.middleware.responses_history import History

DIALECTS: dict[str, Dialect] = {
    "ollama-chat": ollama.CHAT,
    "ollama-generate": ollama.GENERATE,
    "ollama-embed": ollama.EMBED,
    "ollama-embeddings": ollama.EMBEDDINGS,
    "openai": openai.CHAT,
    "openai-completions": openai_completions.COMPLETIONS,
    "openai-embeddings": openai_embeddings.EMBEDDINGS,
    "openai-rerank": openai_embeddings.RERANK,
    "responses": ResponsesDialect(History()),
    "anthropic": anthropic.MESSAGES,
}
GOOD = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "prompt": "hi",
    "input": "hi",
    "query": "hi",
    "documents": ["hi"],
    "max_tokens": 5,
}

every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def answered(dialect: Dialect, body: bytes) -> Request | None:
    """The request, or None after the error was checked."""
    try:
        request = dialect.parse(body)
    except (InvalidRequest, NotSupported) as caught:
        error = caught
    else:
        assert isinstance(request, Request)
        return request
    reply = dialect.error(error)
    assert reply.status in {400, 501}
    envelope = json.loads(reply.body)["error"]
    assert (envelope if isinstance(envelope, str) else envelope["message"]) == error.message
    assert not re.search(r"Traceback|\.py|site-packages|0x[0-9a-f]{6}", error.message)
    assert len(error.message) < 600
    return None


def with_text(text: str) -> bytes:
    """A good body with this JSON text in the place of the user's words."""
    return json.dumps(GOOD).replace('"hi"', text).encode()


@every_dialect
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("NaN", id="nan"),
        pytest.param("-Infinity", id="infinity"),
        pytest.param("1e400", id="beyond-a-double"),
        pytest.param("9" * 10_000, id="many-digits"),
        pytest.param("-" + "9" * 99, id="big-integer"),
        pytest.param('"\\ud800"', id="lone-surrogate"),
        pytest.param('"\\udc00\\ud800"', id="swapped-surrogates"),
        pytest.param('"a\nb"', id="raw-line-end"),
        pytest.param('"\\x41"', id="wrong-escape"),
        pytest.param('"open', id="open-string"),
        pytest.param("[" * 100_000, id="deep-arrays"),
        pytest.param("[" * 100_000 + "]" * 100_000, id="deep-closed-arrays"),
        pytest.param('{"a":' * 100_000 + "1" + "}" * 100_000, id="deep-objects"),
        pytest.param("'hi'", id="single-quotes"),
        pytest.param("undefined", id="undefined"),
        pytest.param("// hi", id="comment"),
        pytest.param("{}", id="object"),
        pytest.param("true", id="true"),
        pytest.param("5", id="number"),
    ],
)
def test_wrong_text_is_refused(dialect: Dialect, text: str) -> None:
    assert answered(dialect, with_text(text)) is None


@every_dialect
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"  \n", id="blank"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="array"),
        pytest.param(b'"{}"', id="string"),
        pytest.param(b"{", id="open"),
        pytest.param(b"{} {}", id="two-values"),
        pytest.param(json.dumps(GOOD).encode() + b"garbage", id="trailing-garbage"),
        pytest.param(json.dumps(GOOD).encode() + b"\x00", id="trailing-nul"),
        pytest.param(json.dumps(GOOD).encode("utf-16"), id="utf-16"),
        pytest.param(json.dumps(GOOD).encode("utf-16-le"), id="utf-16-without-mark"),
        pytest.param(json.dumps(GOOD).encode("utf-32"), id="utf-32"),
        pytest.param(b"model=m&prompt=hi", id="form"),
        pytest.param(
            b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--x--', id="multipart"
        ),
        pytest.param(b"\x1f\x8b\x08\x00\x00\x00\x00\x00", id="gzip"),
        pytest.param(b"\x28\xb5\x2f\xfd", id="zstd"),
        pytest.param(b"<xml/>", id="xml"),
        pytest.param(b"\xff\xfe\xfd", id="bytes"),
        pytest.param(b'{"model": "m", "messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', id="cesu"),
        pytest.param(b"{}", id="no-fields"),
    ],
)
def test_wrong_bodies_are_refused(dialect: Dialect, body: bytes) -> None:
    assert answered(dialect, body) is None


@every_dialect
@pytest.mark.parametrize(
    ("text", "words"),
    [('"a\\u0000b"', "a\0b"), ('"\\ud83d\\ude00"', "\U0001f600"), ('"\u2028"', "\u2028"), ('"é"', "é")],
)
def test_odd_text_arrives_as_it_is(dialect: Dialect, text: str, words: str) -> None:
    match answered(dialect, with_text(text)):
        case ChatRequest(messages=[*_, message]):
            assert message.text == words
        case CompletionRequest(prompt=prompt):
            assert prompt == words
        case EmbedRequest(inputs=inputs):
            assert inputs == (words,)
        case RerankRequest(query=query, documents=documents):
            assert (query, documents) == (words, (words,))
        case other:
            pytest.fail(f"not a request: {other}")


@every_dialect
def test_bom_and_duplicate_keys(dialect: Dialect) -> None:
    whole = json.dumps(GOOD)
    plain = answered(dialect, whole.encode())
    assert plain is not None
    assert answered(dialect, b"\xef\xbb\xbf" + whole.encode()) == plain
    assert answered(dialect, ('{"model": "other", ' + whole[1:]).encode()) == plain


_NAMES = """
    model messages prompt system role content type text thinking stream stream_options include_usage options
    max_tokens max_completion_tokens num_predict num_ctx num_gpu temperature top_k top_p seed stop
    stop_sequences keep_alive raw template context suffix images format think tools tool_choice tool_calls
    response_format n logprobs name refusal functions function_call function arguments parameters top_logprobs
    logit_bias tool_call_id image_url url input_audio data json_schema schema reasoning reasoning_effort effort
    allowed_tools mode chat_template_kwargs think echo best_of input dimensions encoding_format query documents top_n
    instructions call_id output summary include metadata truncation store previous_response_id encrypted_content id
"""
KEYS = st.sampled_from(_NAMES.split())
WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "system",
        "tool",
        "function",
        "text",
        "thinking",
        "image",
        "image_url",
        "json_schema",
        "allowed_tools",
        "required",
        "message",
        "function_call",
        "function_call_output",
        "item_reference",
        "input_text",
        "input_image",
        "5m",
        "auto",
        "",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=25,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=8)
GOOD_WITH_A_FLAW = OBJECTS.map(lambda flaws: {**GOOD, **flaws})


@every_dialect
@given(value=OBJECTS | GOOD_WITH_A_FLAW)
@settings(deadline=None)
def test_any_object_is_answered(dialect: Dialect, value: dict[str, Any]) -> None:
    answered(dialect, json.dumps(value).encode())


@every_dialect
@given(body=st.binary() | VALUES.map(json.dumps).map(str.encode))
@settings(deadline=None)
def test_any_bytes_are_answered(dialect: Dialect, body: bytes) -> None:
    answered(dialect, body)
