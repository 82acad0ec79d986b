"""OpenAI's /v1/responses.

Source: OpenAI's API reference and the types of its Python SDK. Beside its own options the route takes those of
chat.Sampling and `keep_alive`, as extra fields; fields it does not know are ignored. A final response may have
`truncated` and `warnings` (`encoding.notes`) beside the API's own fields.
"""

from collections.abc import Iterator

from daemon.chat import Answer, Event, Request, TextDelta, ThinkingDelta, TokenRequest, ToolCallDelta
from daemon.errors import MgrError, NotFound
from daemon.framing import to_json
from daemon.middleware.dialect import Reply, read_object
from daemon.middleware.fields import Fields, shown
from daemon.middleware.openai_common import OpenAIDialect, error_object
from daemon.middleware.responses_history import History
from daemon.middleware.responses_request import PreviousNotFound, ResponsesRequest, read
from daemon.middleware.responses_stream import ResponsesEncoder


class ResponsesDialect(OpenAIDialect):
    """Unlike other dialects it has a memory: answers go into `history`, and later requests go on from them."""

    def __init__(self, history: History) -> None:
        self._history = history

    def parse(self, body: bytes) -> Request:
        return read(Fields(read_object(body)), self._history)

    def encoder(self, request: TokenRequest, created: float) -> ResponsesEncoder:
        """Raises TypeError for a request that `parse` did not make."""
        if not isinstance(request, ResponsesRequest):
            raise TypeError("not a request of this API")
        return ResponsesEncoder(request, created, self._history)

    def reply(self, request: TokenRequest, answer: Answer, created: float) -> Reply:
        """What the stream of the same answer ends with."""
        encoder = self.encoder(request, created)
        for event in _events(answer):
            encoder.feed(event)
        encoder.finish()
        return Reply(200, to_json(encoder.response))

    def error(self, error: MgrError) -> Reply:
        reply = super().error(error)
        if not isinstance(error, PreviousNotFound):
            return reply
        envelope = error_object(error)
        envelope["error"] |= {"param": "previous_response_id", "code": "previous_response_not_found"}
        return Reply(reply.status, to_json(envelope))

    def retrieve(self, response_id: str) -> Reply:
        """A stored response, as it was answered."""
        stored = self._history.find(response_id)
        return self.error(_unknown(response_id)) if stored is None else Reply(200, stored.body)

    def delete(self, response_id: str) -> Reply:
        """Forgets a response; those that went on from it keep the conversation."""
        if not self._history.remove(response_id):
            return self.error(_unknown(response_id))
        return Reply(200, to_json({"id": response_id, "object": "response", "deleted": True}))


def _unknown(response_id: str) -> NotFound:
    return NotFound(f"Response with id {shown(response_id)} not found")


def _events(answer: Answer) -> Iterator[Event]:
    yield ThinkingDelta(answer.thinking)
    yield TextDelta(answer.text, answer.logprobs)
    for index, call in enumerate(answer.tool_calls):
        yield ToolCallDelta(index, call.arguments, call.id, call.name)
    yield answer.done
