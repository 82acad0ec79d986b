"""Must hold: each JSON schema is kept to by a real engine with a model that knows nothing of it, and an answer that was
cut says so. The four dialects take turns, streamed and not; the scripted engine does the rest, with answers that are
wrong or cut."""

import json

import httpx
import jsonschema
import pytest

from tests.engine.matrix.asks import Ask, user
from tests.fakes.daemon import GUARD_SECONDS, DaemonProcess
from tests.fakes.dialects import Way, way_id
from tests.fakes.exchange import DIALECTS, body, heard
from tests.fakes.schemas import ENFORCED

LIMIT = 160  # tokens, more than any of the answers has that ends
# A small model may go on for ever where the schema lets it.
ENDLESS = {"recursive"}
ROUNDS = [(name, DIALECTS[index % len(DIALECTS)]) for index, name in enumerate(ENFORCED)]


@pytest.mark.parametrize(("name", "way"), ROUNDS, ids=[f"{name}-{way_id(way)}" for name, way in ROUNDS])
def test_a_real_answer_is_valid(tools_daemon: DaemonProcess, name: str, way: Way) -> None:
    ask = Ask(turns=(user("Fill in the form."),), model="with-tools", format=ENFORCED[name], limit=LIMIT)
    reply = httpx.post(
        f"{tools_daemon.url}{way.path}", json=body(way, ask), timeout=GUARD_SECONDS, trust_env=False
    )
    answer = heard(way, reply.raise_for_status().content)
    if answer.told.finish == "length":
        assert name in ENDLESS
        [warning] = answer.warnings
        assert "cut by the token limit" in warning
        return
    assert answer.told.finish == "stop"
    value = json.loads(answer.told.text)
    jsonschema.validate(value, ENFORCED[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    assert answer.warnings == ()
