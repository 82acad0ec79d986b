"""A request with what its model brings along; and what that model cannot do is said before it is loaded. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from daemon.chat import (
    Audio,
    ChatRequest,
    CompletionRequest,
    EmbedRequest,
    Image,
    LoadRequest,
    Message,
    Part,
    RerankRequest,
    Sampling,
    Text,
    TokenRequest,
)
from daemon.errors import InvalidRequest
from daemon.middleware import ollama
from daemon.scheduler.state import Purpose, Weights
from daemon.store.models import Model

_POOLING_RANK = 4


def prepare(request: TokenRequest, model: Model, defaults: Sampling, *, strict: bool = True) -> TokenRequest:
    """The request with what the model brings along: its parameters, its system prompt, its example messages.

    What the request says wins over the model, and the model over `defaults`, the ones of the API. Without `strict` a
    wish to think is dropped where the model does not. Raises InvalidRequest for what the model cannot do.
    """
    if "completion" not in model.capabilities:
        raise InvalidRequest(f'"{request.model}" does not support chat; it is an embedding model')
    sampling, load = ollama.read_options(model.params)
    request = replace(
        request, sampling=request.sampling.over(sampling).over(defaults), load=request.load.over(load)
    )
    if isinstance(request, CompletionRequest):
        return _completion(request, model)
    # A conversation that goes on has had its examples.
    own = [] if request.context else [ollama.read_message(message) for message in model.messages]
    if model.system and not (request.messages and request.messages[0].role == "system"):
        own.insert(0, Message("system", (Text(model.system),)))
    return _chat(replace(request, messages=(*own, *request.messages)), model, strict)


def _completion(request: CompletionRequest, model: Model) -> CompletionRequest:
    if request.suffix is not None and "insert" not in model.capabilities:
        raise InvalidRequest(f'"{request.model}" does not support insert: it cannot fill in before a suffix')
    _check_media(request.images, request.model, model)
    return request


def _chat(request: ChatRequest, model: Model, strict: bool) -> ChatRequest:
    for message in request.messages:
        _check_media(message.parts, request.model, model)
    return _thinking(_tools(request, model), model, strict)


def _tools(request: ChatRequest, model: Model) -> ChatRequest:
    choice = request.tool_choice
    if choice.mode == "none":
        return replace(request, tools=())
    if choice.mode == "required" and not request.tools:
        raise InvalidRequest("tool_choice asks for a call, and the request has no tools")
    if choice.name is not None and choice.name not in {tool.name for tool in request.tools}:
        raise InvalidRequest(f"tool_choice names '{choice.name}', which is none of the tools")
    if request.tools and "tools" not in model.capabilities:
        raise InvalidRequest(
            f'"{request.model}" does not support tools: its chat template cannot carry them; use another model, or '
            "create one from it with a TEMPLATE that can"
        )
    return request


def _thinking(request: ChatRequest, model: Model, strict: bool) -> ChatRequest:
    if "thinking" in model.capabilities or not request.thinking:
        return request
    if strict:
        raise InvalidRequest(
            f'"{request.model}" does not support thinking; leave it out, or use another model'
        )
    return replace(request, thinking=None, thinking_budget=None)


def _check_media(parts: Iterable[Part], name: str, model: Model) -> None:
    for part in parts:
        if isinstance(part, Image) and "vision" not in model.capabilities:
            raise InvalidRequest(f'"{name}" does not support images: it has no vision projector')
        if isinstance(part, Audio) and "audio" not in model.capabilities:
            raise InvalidRequest(f'"{name}" does not support audio: it has no audio projector')


def weights(model: Model, purpose: Purpose = Purpose.GENERATE) -> Weights:
    """What the scheduler has to know of a model. One that generates text gives the mean of its states as a vector."""
    generates = "embedding" not in model.capabilities
    return Weights(
        model=model.load_key,
        path=model.path,
        name=str(model.name),
        trained_window=model.summary.context_length or 0,
        size=model.size,
        template=model.jinja_template,
        projector=next(iter(model.projectors), None) if purpose is Purpose.GENERATE else None,
        adapters=model.adapters,
        purpose=purpose,
        pooling="mean" if purpose is Purpose.EMBED and generates else None,
        summary=model.summary,
        projectors=model.projector_heads if purpose is Purpose.GENERATE else (),
    )


def ranks(model: Model) -> bool:
    """Whether the model was made to score a document for a query. Source: llama.cpp's `pooling_type`."""
    return model.summary.metadata.get(model.summary.key("pooling_type")) == _POOLING_RANK


def purpose_of(request: EmbedRequest | RerankRequest | LoadRequest, model: Model) -> Purpose:
    if isinstance(request, RerankRequest):
        return Purpose.RERANK
    embeds = isinstance(request, EmbedRequest) or request.embed or "completion" not in model.capabilities
    return Purpose.EMBED if embeds else Purpose.GENERATE
