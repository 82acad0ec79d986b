"""The body of /api/create: what is read, and what is refused before anything is looked up."""

import json
from typing import Any

import pytest

from daemon.errors import InvalidRequest, MgrError, NotSupported
from daemon.names import ModelName
from daemon.routes.create_body import parse
from daemon.store.blobs import Digest
from daemon.store.recipe import Recipe

HEX = "0123456789abcdef" * 4
NAMED = {"model": "m", "from": "base"}


def read(**body: Any) -> Recipe:
    return parse(json.dumps({**NAMED, **body}).encode())[0]


def test_everything_that_a_client_may_send() -> None:
    body = {
        "model": "u/m:t",
        "from": "base",
        "files": {"a/m.gguf": f"sha256:{HEX}"},
        "adapters": {"l.gguf": f"sha256-{HEX}"},
        "template": "T",
        "system": "S",
        "license": ["A", "", "B"],
        "parameters": {"num_ctx": 100, "stop": "x", "mirostat": 1, "seed": None},
        "messages": [{"role": "user", "content": "hi"}],
        "quantization": "q4_k",
        "renderer": "r",
        "parser": "p",
        "requires": "0.1.0",
        "info": {
            "model_family": "f",
            "quantization_level": "Q",
            "context_length": 9,
            "capabilities": ["tools"],
        },
        "stream": False,
        "something": "else",
    }
    recipe, stream = parse(json.dumps(body).encode())
    assert stream is False
    assert recipe == Recipe(
        name=ModelName("m", "t", "u"),
        base="base",
        files={"a/m.gguf": Digest(HEX)},
        adapters={"l.gguf": Digest(HEX)},
        template="T",
        system="S",
        licenses=("A", "B"),
        parameters={"num_ctx": 100, "stop": ["x"]},
        messages=({"role": "user", "content": "hi"},),
        quantize="Q4_K_M",
        config={
            "renderer": "r",
            "parser": "p",
            "requires": "0.1.0",
            "model_family": "f",
            "file_type": "Q",
            "context_length": 9,
            "capabilities": ["tools"],
        },
    )


def test_the_old_name_of_the_model_and_a_stream_unless_refused() -> None:
    assert parse(b'{"name": "m", "from": "b"}') == (Recipe(name=ModelName("m"), base="b"), True)


def test_what_is_empty_is_not_given() -> None:
    body = {"template": "", "system": "", "license": "", "parameters": {}, "files": {}, "quantize": ""}
    assert read(**body, messages=[], info={}, renderer="", draft_files={}) == Recipe(
        name=ModelName("m"), base="base"
    )


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": ""}, "model is required"),
        ({"model": "../x"}, "invalid model name '../x'"),
        ({"from": ""}, "neither 'from' or 'files' was specified"),
        ({"files": {"/a": f"sha256:{HEX}"}}, "file path must be relative"),
        ({"files": {"a/../b": f"sha256:{HEX}"}}, "file path must be relative"),
        ({"files": {"a": "sha256:0"}}, "invalid digest format"),
        ({"files": {"a": 1}}, "files.a must be a string, not 1"),
        ({"files": []}, "files must be an object"),
        ({"adapters": {"a.safetensors": f"sha256:{HEX}"}}, "safetensors are not supported, convert"),
        ({"parameters": {"tempratur": 1}}, "parameters.tempratur is no parameter"),
        (
            {"parameters": {"temperature": "hot"}},
            'parameter temperature must be a number from 0 to 100, not "hot"',
        ),
        ({"parameters": {"num_ctx": -5}}, "parameter num_ctx must be an integer"),
        (
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages[0].role must be one of system, user, assistant",
        ),
        ({"messages": [{"role": "user"}]}, "messages[0].content is required"),
        ({"quantize": "Q9"}, 'quantize is "Q9"; it must be one of BF16, F16'),
        ({"license": [1]}, "license must be a string or an array of strings"),
        (
            {"info": {"context_length": "x"}},
            'info.context_length must be an integer from 1 to 2147483647, not "x"',
        ),
    ],
)
def test_what_is_wrong(body: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**body)
    assert words in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        {"from": "gpt-oss:120b-cloud"},
        {"from": "m:cloud"},
        {"remote_host": "https://host.example"},
        {"draft_files": {"a": "b"}},
        {"draft_quantize": "Q8_0"},
    ],
)
def test_what_is_not_built(body: dict[str, Any]) -> None:
    with pytest.raises(NotSupported):
        read(**body)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": NaN}', b'{"model": "\\ud800"}'])
def test_a_body_that_is_no_object(body: bytes) -> None:
    with pytest.raises(MgrError):
        parse(body)
