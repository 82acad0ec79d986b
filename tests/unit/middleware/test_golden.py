"""Golden files: tests/golden/<dialect>/<case>/.

request.json is what a client sends and canonical.txt what it means. Where the case has events.json, the answer of
the engine, stream.txt and reply.json are what the client gets for it; else reply.json is the answer to a load or the
error. Random ids are replaced. `MGR_UPDATE_GOLDEN=1 pytest tests/unit/middleware/test_golden.py` writes everything
but request.json and events.json anew; read the difference before you keep it.
"""

import dataclasses
import json
import os
import pprint
import re
from pathlib import Path
from typing import Any

import pytest

from daemon import chat
from daemon.errors import MgrError
from daemon.middleware import anthropic, ollama, openai, openai_completions, openai_embeddings
from daemon.middleware.dialect import Dialect, Reply
from daemon.middleware.responses import ResponsesDialect
from daemon.middleware.responses_history import History
from tests.fakes.answers import assemble

GOLDEN = Path(__file__).parents[2] / "golden"
UPDATE = bool(os.environ.get("MGR_UPDATE_GOLDEN"))
CREATED = 1_767_323_045.25

DIALECTS: dict[str, Dialect] = {
    "ollama-chat": dataclasses.replace(ollama.CHAT, clock=lambda: CREATED + 1),
    "ollama-generate": dataclasses.replace(ollama.GENERATE, clock=lambda: CREATED + 1),
    "ollama-embed": ollama.EMBED,
    "ollama-embeddings": ollama.EMBEDDINGS,
    "openai": openai.CHAT,
    "openai-completions": openai_completions.COMPLETIONS,
    "openai-embeddings": openai_embeddings.EMBEDDINGS,
    "openai-rerank": openai_embeddings.RERANK,
    "anthropic": anthropic.MESSAGES,
    "responses": ResponsesDialect(History()),
}
CASES = [path.parent for path in sorted(GOLDEN.glob("*/*/request.json")) if path.parts[-3] in DIALECTS]


def described(value: Any) -> Any:
    """A canonical value for reading: its type and the fields that are not as by default."""
    if isinstance(value, tuple):
        return [described(item) for item in value]
    if not dataclasses.is_dataclass(value):
        return value
    fields = {field.name: (getattr(value, field.name), _usual(field)) for field in dataclasses.fields(value)}
    changed = {name: described(item) for name, (item, usual) in fields.items() if item != usual}
    return {"is": type(value).__name__, **changed}


def _usual(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def values(path: Path) -> list[Any]:
    """Events, Choices, Embeddings or a Ranking from [{"is": "TextDelta", "text": "Hi"}, ...]."""
    return [_value(item) for item in json.loads(path.read_text())]


def _value(item: dict[str, Any]) -> Any:
    fields = {
        key: _value(part) if isinstance(part, dict) else part for key, part in item.items() if key != "is"
    }
    if "reason" in fields:
        fields["reason"] = chat.FinishReason(fields["reason"])
    return getattr(chat, item["is"])(**fields)


def shown(value: Any) -> str:
    return pprint.pformat(described(value), width=110, sort_dicts=False) + "\n"


def pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def without_ids(text: str) -> str:
    return re.sub(r"\b(chatcmpl-|cmpl-|rerank-|msg_|req_|resp_|rs_|fc_)[0-9a-f]{24}\b", r"\1<24 hex>", text)


def answer(reply: Reply) -> str:
    head = {"status": reply.status, "type": reply.media_type, "headers": dict(reply.headers)}
    return without_ids(pretty({**head, "body": json.loads(reply.body)}))


def stream(dialect: Dialect, request: chat.TokenRequest, source: list[chat.Event]) -> str:
    encoder = dialect.encoder(request, CREATED)
    output = b"".join([encoder.feed(event) for event in source] + [encoder.finish()])
    return without_ids(output.decode())


def results(dialect: Dialect, case: Path) -> dict[str, str]:
    """Name and text of every file of the case that the dialect determines."""
    try:
        request = dialect.parse((case / "request.json").read_bytes())
    except MgrError as error:
        return {"reply.json": answer(dialect.error(error))}
    canonical = {"canonical.txt": shown(request)}
    if isinstance(request, chat.LoadRequest):
        return canonical | {"reply.json": answer(dialect.loaded(request, CREATED))}
    if isinstance(request, chat.EmbedRequest):
        (found,) = values(case / "events.json")
        return canonical | {"reply.json": answer(dialect.embedded(request, found, CREATED))}
    if isinstance(request, chat.RerankRequest):
        (ranking,) = values(case / "events.json")
        return canonical | {"reply.json": answer(dialect.ranked(request, ranking, CREATED))}
    if isinstance(request, chat.Batch):
        return canonical | side_by_side(dialect, request, values(case / "events.json"))
    assert isinstance(request, chat.ChatRequest | chat.CompletionRequest)
    source = values(case / "events.json")
    reply = dialect.reply(request, assemble(source), CREATED)
    return canonical | {"reply.json": answer(reply), "stream.txt": stream(dialect, request, source)}


def side_by_side(dialect: Dialect, request: chat.Batch, source: list[chat.Choice]) -> dict[str, str]:
    """The two answers to a request with several choices."""
    encoder = dialect.batch_encoder(request, CREATED)
    output = b"".join([encoder.feed_choice(choice) for choice in source] + [encoder.finish()])
    each = [[choice.event for choice in source if choice.index == i] for i in range(len(request.requests))]
    reply = dialect.replies(request, [assemble(one) for one in each], CREATED)
    return {"reply.json": answer(reply), "stream.txt": without_ids(output.decode())}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_golden(case: Path) -> None:
    for name, text in results(DIALECTS[case.parent.name], case).items():
        if UPDATE:
            (case / name).write_text(text)
        assert (case / name).read_text() == text, name


def test_every_dialect_has_cases() -> None:
    assert {case.parent.name for case in CASES} == set(DIALECTS)
