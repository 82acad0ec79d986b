"""OpenAI's /v1/completions: text that is continued as it stands.

Source: OpenAI's API reference and the types of its Python SDK. Beside its own options the route takes, as extra
fields, those of chat.Sampling, `keep_alive` and `truncate`; fields it does not know are ignored.

Without `max_tokens` the answer goes on until it ends by itself, as with Ollama and llama.cpp. OpenAI's 16 is not
copied: who relies on it is rare, and who is surprised by an answer cut off after a few words is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from daemon.chat import (
    Answer,
    Batch,
    CompletionRequest,
    Done,
    FinishReason,
    Request,
    Sampling,
    TextDelta,
    ThinkingDelta,
    TokenRequest,
    ToolCallDelta,
)
from daemon.framing import Template, quoted
from daemon.middleware import request as pieces
from daemon.middleware.dialect import BatchEncoder, Reply, read_object
from daemon.middleware.encoding import StreamEncoder
from daemon.middleware.fields import BadField, FieldNotSupported, Fields
from daemon.middleware.openai_common import (
    MAX_N,
    MAX_TOP_LOGPROBS,
    ChoiceEncoder,
    ManyEncoder,
    OpenAIDialect,
    head,
    include_usage,
    inputs,
    limit,
    logit_bias,
    several,
    whole,
)

# ---- requests


def _completion(fields: Fields) -> CompletionRequest | Batch:
    n = fields.integer("n", 1, MAX_N) or 1
    _check_best_of(fields, n)
    stream = fields.boolean("stream") is True
    request = partial(
        CompletionRequest,
        model=pieces.model(fields),
        keep_alive=pieces.keep_alive(fields),
        suffix=fields.string("suffix") or None,
        sampling=_sampling(fields),
        stream=stream,
        include_usage=include_usage(fields, stream),
        echo=fields.boolean("echo") is True,
        truncate=fields.boolean("truncate") is True,
    )
    requests = [request(prompt=prompt) for prompt in inputs(fields, "prompt")]
    if requests[0].echo:
        _check_echo(requests)
    return several(requests, n)


def _check_best_of(fields: Fields, n: int) -> None:
    best_of = fields.integer("best_of", 1, pieces.MAX_INT) or n
    if best_of < n:
        raise BadField("best_of", f"must not be less than n, which is {n}, not {best_of}")
    if best_of > n:
        raise FieldNotSupported("best_of", "above n is not supported; leave it out")


def _check_echo(requests: Sequence[CompletionRequest]) -> None:
    if requests[0].sampling.logprobs:
        raise FieldNotSupported(
            "echo", "with logprobs is not supported: a prompt's own tokens are not scored"
        )
    if any(not isinstance(request.prompt, str) for request in requests):
        raise FieldNotSupported("echo", "of token ids is not supported; send the prompt as text")


def _sampling(fields: Fields) -> Sampling:
    logprobs = fields.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    return replace(
        pieces.sampling(fields, max_tokens=limit(fields, "max_tokens")),
        logprobs=None if logprobs is None else True,
        top_logprobs=logprobs or None,
        logit_bias=logit_bias(fields),
    )


# ---- answers


def _echoed(request: TokenRequest) -> str:
    """What the answer's text begins with."""
    if isinstance(request, CompletionRequest) and request.echo and isinstance(request.prompt, str):
        return request.prompt
    return ""


def _choice_object(index: int, request: TokenRequest, answer: Answer) -> dict[str, Any]:
    return {
        "index": index,
        "text": _echoed(request) + answer.text,
        "logprobs": _logprobs(answer.logprobs, 0),
        "finish_reason": _reason(answer.done),
    }


def _reason(done: Done) -> str:
    return "length" if done.reason is FinishReason.LENGTH else "stop"


def _logprobs(entries: Sequence[Mapping[str, Any]], offset: int) -> dict[str, list[Any] | None] | None:
    """The older shape: a list for each property, and where each token begins in the text, in characters."""
    if not entries:
        return None
    tokens = [str(entry["token"]) for entry in entries]
    offsets = [offset + sum(map(len, tokens[:place])) for place in range(len(tokens))]
    best = [{top["token"]: top["logprob"] for top in entry.get("top_logprobs", ())} for entry in entries]
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": best if any(best) else None,
        "text_offset": offsets,
    }


class _Encoder(ChoiceEncoder):
    """A prompt that is echoed comes with the first text."""

    def __init__(self, head: Mapping[str, Any], index: int, request: TokenRequest) -> None:
        super().__init__(head, index, request)
        self._echo = _echoed(request)
        self._offset = 0
        self._template = Template(lambda text: self._chunk(_piece(text)))

    def feed_quoted(self, text: bytes) -> bytes:
        if self._echo:
            echo, self._echo = self._echo, ""
            text = quoted(echo) + text
        return self._template.fill(text)

    def _scored(self, delta: TextDelta) -> bytes:
        logprobs = _logprobs(delta.logprobs, self._offset)
        self._offset += sum(len(entry["token"]) for entry in delta.logprobs)
        return self._chunk(_piece(delta.text) | {"logprobs": logprobs})

    def _thinking(self, delta: ThinkingDelta) -> bytes:
        return b""  # only a chat thinks and calls

    def _call(self, delta: ToolCallDelta) -> bytes:
        return b""

    def last(self, done: Done) -> bytes:
        return self._ending(_piece(self._echo) | {"finish_reason": _reason(done)}, done)


def _piece(text: str) -> dict[str, Any]:
    return {"text": text, "logprobs": None, "finish_reason": None}


class _Completions(OpenAIDialect):
    def parse(self, body: bytes) -> Request:
        return _completion(Fields(read_object(body)))

    def encoder(self, request: TokenRequest, created: float) -> StreamEncoder:
        return _Encoder(_head(request.model, created), 0, request)

    def batch_encoder(self, request: Batch, created: float) -> BatchEncoder:
        return ManyEncoder(request, _head(request.model, created), _Encoder)

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        return whole(_head(request.model, created), [request], [answer], _choice_object)

    def replies(self, request: Batch, answers: Sequence[Answer], created: float) -> Reply:
        return whole(_head(request.model, created), request.requests, answers, _choice_object)


def _head(model: str, created: float) -> dict[str, Any]:
    return head("cmpl", "text_completion", model, created)


COMPLETIONS = _Completions()
