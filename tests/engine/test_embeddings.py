"""Must hold, with a real engine: vectors of a batch are those of single texts, in their order; and a model that makes
vectors and one that talks are two engines of the same file, at the same time."""

import asyncio
import base64
import math
import struct
from collections.abc import Iterator, Sequence
from operator import mul
from typing import Any

import httpx
import pytest

from tests.engine.conftest import MakeEngineDaemon
from tests.fakes.daemon import DaemonProcess, eventually

MODEL = "smollm2"
TEXTS = [
    "The sea is deep.",
    "x",
    "Grüße, 世界 🌍",
    "The ocean is deep.",
    "alpha beta gamma " * 40,
    "1 + 1 = 2",
]
# What the sum of a batch in another order may change.
NEAR = 1e-4


async def vectors(client: httpx.AsyncClient, **body: Any) -> list[list[float]]:
    reply = await client.post("/api/embed", json={"model": MODEL, **body})
    assert reply.status_code == 200, reply.text
    found = reply.json()["embeddings"]
    assert isinstance(found, list)
    return found


async def as_openai(client: httpx.AsyncClient, **body: Any) -> list[Any]:
    reply = await client.post("/v1/embeddings", json={"model": MODEL, **body})
    assert reply.status_code == 200, reply.text
    data = reply.json()["data"]
    assert [each["index"] for each in data] == [*range(len(data))]
    return [each["embedding"] for each in data]


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest difference of two vectors of the same length."""
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(map(mul, one, other))


def close(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> bool:
    return all(apart(one, other) < NEAR for one, other in zip(ones, others, strict=True))


@pytest.fixture(autouse=True)
def unloaded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Other tests share the daemon, and count what is loaded."""
    yield
    if "daemon" in request.fixturenames:
        daemon = request.getfixturevalue("daemon")
        body = {"model": MODEL, "keep_alive": 0}
        httpx.post(f"{daemon.url}/api/generate", json=body, trust_env=False).raise_for_status()


async def test_a_batch_is_as_its_texts_alone_and_in_their_order(daemon: DaemonProcess) -> None:
    async with daemon.client() as client:
        batch = await vectors(client, input=TEXTS)
        alone = [(await vectors(client, input=text))[0] for text in TEXTS]
        backwards = await vectors(client, input=TEXTS[::-1])
        [older] = [
            (await client.post("/api/embeddings", json={"model": MODEL, "prompt": TEXTS[0]})).json()[
                "embedding"
            ]
        ]
    assert close(batch, alone)
    assert close(backwards[::-1], batch)
    assert close([older], batch[:1])
    assert all(math.isclose(math.hypot(*vector), 1, abs_tol=1e-6) for vector in batch)
    assert {len(vector) for vector in batch} == {576}
    # They say something of the text: of two others the one that means the same is nearer.
    near, far = (dot(batch[0], batch[other]) for other in (3, 5))
    assert near > far + 0.01


async def test_the_forms_of_a_vector(daemon: DaemonProcess) -> None:
    """Base64, fewer dimensions and token ids: each is the same vector as its plain form."""
    async with daemon.client() as client:
        plain = await as_openai(client, input=TEXTS)
        packed = await as_openai(client, input=TEXTS, encoding_format="base64")
        short = await as_openai(client, input=TEXTS, dimensions=64)
        theirs = await vectors(client, input=TEXTS)
        generated = await client.post(
            "/api/generate",
            json={
                "model": MODEL,
                "prompt": "go",
                "stream": False,
                "options": {"num_predict": 1},
            },
        )
        context = generated.json()["context"]
        by_tokens = await as_openai(client, input=[context, [*reversed(context)]])
        one_by_tokens = await as_openai(client, input=context)
    unpacked = [struct.unpack("<576f", base64.b64decode(text)) for text in packed]
    assert close(unpacked, plain)
    assert close(theirs, plain)
    for cut, whole in zip(short, plain, strict=True):
        length = math.hypot(*whole[:64])
        assert close([cut], [[value / length for value in whole[:64]]])
        assert math.isclose(math.hypot(*cut), 1, abs_tol=1e-6)
    assert close(one_by_tokens, by_tokens[:1])
    assert apart(*by_tokens) > 0.01


async def test_more_dimensions_than_there_are(daemon: DaemonProcess) -> None:
    async with daemon.client() as client:
        reply = await client.post("/v1/embeddings", json={"model": MODEL, "input": "x", "dimensions": 577})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "dimensions is 577, and the model's vectors have only 576"


async def test_a_text_that_does_not_fit(make_engine_daemon: MakeEngineDaemon) -> None:
    """Cut where that is wished, and said; else refused, with its place."""
    daemon = make_engine_daemon(CONTEXT_LENGTH=256)
    long = "alpha beta gamma " * 200
    async with daemon.client() as client:
        asked = {"model": MODEL, "input": ["ok", long, "fine"]}
        cut = (await client.post("/api/embed", json={**asked, "truncate": True})).json()
        refused = await client.post("/api/embed", json={**asked, "truncate": False})
        theirs = await client.post("/v1/embeddings", json=asked)
        first, longest, last = await vectors(client, input=["ok", "alpha beta gamma " * 70, "fine"])
    assert cut["truncated"] == [1]
    assert close([cut["embeddings"][0], cut["embeddings"][2]], [first, last])
    assert dot(cut["embeddings"][1], longest) > 0.95
    for reply in (refused, theirs):
        assert reply.status_code == 400
    assert "input 1 has 6" in refused.json()["error"]
    assert "input 1 has 6" in theirs.json()["error"]["message"]
    assert theirs.json()["error"]["code"] == "context_length_exceeded"


async def test_vectors_and_answers_of_one_model_at_once(make_engine_daemon: MakeEngineDaemon) -> None:
    """Must hold: an embedding request and a chat request for the same model both work; each has an engine."""
    daemon = make_engine_daemon(CONTEXT_LENGTH=1024)
    chat = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Say hello."}],
        "stream": False,
        "options": {"temperature": 0, "num_predict": 8},
    }
    async with daemon.client() as client:
        spoken, made = await asyncio.gather(
            client.post("/api/chat", json=chat), vectors(client, input=TEXTS[:2])
        )
        assert [line["name"] for line in daemon.loaded()] == ["smollm2:135m", "smollm2:135m"]
        spoken_again, made_again = await asyncio.gather(
            client.post("/api/chat", json=chat), vectors(client, input=TEXTS[:2])
        )
        assert len(daemon.engines()) == 2
        assert spoken_again.json()["message"] == spoken.json()["message"]
        assert spoken.json()["message"]["content"]
        assert close(made_again, made)
        await client.post("/api/generate", json={"model": MODEL, "keep_alive": 0})
        await eventually(lambda: daemon.loaded() == [], "both are unloaded")
    assert daemon.engines() == []


@pytest.mark.parametrize("inputs", [[], [""], ["ok", ""]], ids=["none", "empty", "one-empty"])
async def test_no_text_is_no_vector(daemon: DaemonProcess, inputs: list[str]) -> None:
    async with daemon.client() as client:
        theirs = await client.post("/v1/embeddings", json={"model": MODEL, "input": inputs})
        reply = await client.post("/api/embed", json={"model": MODEL, "input": inputs})
    assert theirs.status_code == 400
    assert reply.status_code == (200 if not inputs else 400)
    if len(inputs) == 2:
        assert "input[1]" in theirs.json()["error"]["message"]
        assert reply.json()["error"].startswith("input 1: ")
