"""The tokens of a conversation, which a client of Ollama's /api/generate may send back to go on with it.

Only the engine can make them: it renders the chat template and knows the vocabulary.
"""

from collections.abc import Awaitable, Sequence

from daemon.chat import ChatRequest, CompletionRequest, Piece, QuotedSink, Sink, TextDelta
from daemon.framing import quoted, unquoted
from daemon.runner.runner import Runner


async def prompt_tokens(runner: Runner, request: ChatRequest) -> tuple[int, ...]:
    """The whole prompt: what was before it, and the turns of the request as the template writes them."""
    before = request.context or ()
    return (*before, *await runner.tokenize(await runner.render(request), special=not before))


def continuation(request: ChatRequest, prompt: tuple[int, ...]) -> CompletionRequest:
    """The request as the text that its tokens are, which no template is laid over."""
    return CompletionRequest(
        model=request.model,
        load=request.load,
        keep_alive=request.keep_alive,
        prompt=prompt,
        sampling=request.sampling,
        stream=request.stream,
        include_usage=request.include_usage,
        format=request.format,
        truncate=request.truncate,
    )


class Heard(QuotedSink):
    """A sink that keeps the text that it hands on."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._texts: list[bytes] = []  # quoted

    def __call__(self, pieces: Sequence[Piece]) -> Awaitable[None] | None:
        self._texts.extend([quoted(piece.text) for piece in pieces if isinstance(piece, TextDelta)])
        return self._sink(pieces)

    def quoted(self, text: bytes) -> Awaitable[None] | None:
        self._texts.append(text)
        if isinstance(self._sink, QuotedSink):
            return self._sink.quoted(text)
        return self._sink([TextDelta(unquoted(text))])

    @property
    def text(self) -> str:
        return unquoted(b"".join(self._texts))
