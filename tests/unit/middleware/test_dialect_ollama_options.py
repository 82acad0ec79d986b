import json
from typing import Any

import pytest

from daemon.chat import ChatRequest, LoadOptions, Sampling
from daemon.errors import InvalidRequest
from daemon.middleware import ollama
from daemon.middleware.dialect import Dialect

HI = {"role": "user", "content": "hi"}
EVERY_ROUTE = (ollama.CHAT, ollama.GENERATE, ollama.EMBED, ollama.EMBEDDINGS)


def parse(dialect: Dialect, **body: Any) -> Any:
    return dialect.parse(json.dumps({"model": "m", **body}).encode())


def chat(*messages: Any, **body: Any) -> ChatRequest:
    request = parse(ollama.CHAT, messages=list(messages), **body)
    assert isinstance(request, ChatRequest)
    return request


def test_options() -> None:
    request = chat(
        HI,
        keep_alive="5m",
        options={
            "num_predict": 12,
            "seed": 1,
            "temperature": 3,
            "top_k": 5.0,
            "stop": "x",
            "num_ctx": 2048,
            "num_gpu": 0,
            "num_thread": 2,
            "num_batch": 256,
            "main_gpu": 1,
            "use_mmap": False,
            "mirostat": "nobody knows this option",
        },
    )
    assert request.sampling == Sampling(max_tokens=12, seed=1, temperature=3, top_k=5, stop=("x",))
    assert request.load == LoadOptions(
        window=2048, gpu_layers=0, threads=2, batch=256, main_gpu=1, mmap=False
    )
    assert request.keep_alive == 300


def test_automatic_options() -> None:
    automatic = {"num_ctx": 0, "num_gpu": -1, "num_thread": 0, "num_batch": 0, "main_gpu": None}
    assert chat(HI, options=automatic).load == LoadOptions()
    assert chat(HI, options=None).load == LoadOptions()
    assert chat(HI, options={"num_ctx": 1}).load == LoadOptions(window=4)


@pytest.mark.parametrize(("given", "read"), [(-1, -1), (-2, -1), (1, 1), (2**31 - 1, 2**31 - 1)])
def test_num_predict(given: int, read: int) -> None:
    assert chat(HI, options={"num_predict": given}).sampling.max_tokens == read


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ctx": "4096"}, 'options.num_ctx must be an integer from 0 to 16777216, not "4096"'),
        ({"num_ctx": -1}, "options.num_ctx must be an integer from 0 to 16777216, not -1"),
        ({"num_ctx": 2**24 + 1}, "options.num_ctx must be an integer from 0 to 16777216, not 16777217"),
        ({"num_predict": 2**31}, "options.num_predict must be an integer"),
        ({"num_predict": 0}, "options.num_predict must be at least 1, or -1 for no limit, not 0"),
        ({"temperature": "hot"}, 'options.temperature must be a number from 0 to 100, not "hot"'),
        ({"use_mmap": 1}, "options.use_mmap must be true or false, not 1"),
        ({"num_gpu": True}, "options.num_gpu must be an integer"),
        ({"num_gpu": -2}, "options.num_gpu must be an integer"),
        ({"num_thread": 10**9}, "options.num_thread must be an integer"),
        ({"num_batch": 1.5}, "options.num_batch must be an integer"),
        ({"main_gpu": -1}, "options.main_gpu must be an integer"),
        ({"stop": [1]}, "options.stop must be a string or an array of strings"),
        ([], "options must be an object, not an array"),
    ],
)
def test_wrong_options_are_400_and_named(options: Any, message: str) -> None:
    for dialect in EVERY_ROUTE:
        with pytest.raises(InvalidRequest) as caught:
            parse(dialect, messages=[HI], prompt="x", input="x", options=options)
        assert caught.value.message.startswith(message)


def test_every_route_reads_what_the_engine_is_started_with() -> None:
    for dialect in EVERY_ROUTE:
        request = parse(
            dialect, messages=[HI], prompt="x", input="x", options={"num_ctx": 64}, keep_alive="2m"
        )
        assert (request.load, request.keep_alive) == (LoadOptions(window=64), 120)


def test_what_ollama_gave_up_is_ignored() -> None:
    old = {
        "penalize_newline": True,
        "low_vram": 1,
        "f16_kv": "x",
        "mirostat": 2,
        "mirostat_tau": 0.8,
        "numa": False,
    }
    assert chat(HI, options=old) == chat(HI)


def test_options_of_a_model() -> None:
    assert ollama.read_options({"num_ctx": 64, "stop": ["a", "b"], "top_p": 0.5}) == (
        Sampling(stop=("a", "b"), top_p=0.5),
        LoadOptions(window=64),
    )
    with pytest.raises(
        InvalidRequest, match=r"^the model's parameter top_p must be a number from 0 to 1, not 5$"
    ):
        ollama.read_options({"top_p": 5})
