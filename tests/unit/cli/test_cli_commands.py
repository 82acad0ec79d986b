from datetime import UTC, datetime

import pytest

from cli.commands import list as list_command
from cli.commands import ps
from cli.commands.run import keep_alive, prompt_text
from cli.commands.stop import is_loaded
from cli.description import summary
from cli.errors import CliError, WrongUsage

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def test_list_rows() -> None:
    model = {
        "name": "smollm2:135m",
        "digest": "0123456789abcdef",
        "size": 98_362_432,
        "modified_at": "2026-03-04T11:00:00Z",
    }
    assert list_command.rows([model], NOW) == [("smollm2:135m", "0123456789ab", "98 MB", "About an hour ago")]


def test_ps_rows() -> None:
    model = {
        "name": "m:latest",
        "digest": "0123456789abcdef",
        "size": 200,
        "size_vram": 50,
        "context_length": 4096,
        "expires_at": "2026-03-04T12:05:00Z",
        "engine": "wheel",
    }
    assert ps.rows([model], NOW) == [
        ("m:latest", "0123456789ab", "200 B", "75%/25% CPU/GPU", "4096", "5 minutes from now", "wheel")
    ]


def test_rows_of_a_server_that_says_little() -> None:
    assert list_command.rows([{"name": "m"}], NOW) == [("m", "", "0 B", "-")]
    assert ps.rows([{"name": "m"}], NOW) == [("m", "", "0 B", "Unknown", "-", "Never", "")]


@pytest.mark.parametrize(
    ("arguments", "piped", "prompt"),
    [
        (["why", "blue?"], "", "why blue?"),
        (["repeat"], "hi\n", "hi\n repeat"),
        (None, "hi\n", "hi\n"),
        ([""], "", ""),
        (["repeat"], "\n", "repeat"),
    ],
)
def test_prompt_joins_standard_input_and_arguments(
    arguments: list[str] | None, piped: str, prompt: str
) -> None:
    assert prompt_text(arguments, piped) == prompt


@pytest.mark.parametrize("piped", ["", "\n"])
def test_no_prompt_at_all_is_an_error(piped: str) -> None:
    with pytest.raises(CliError, match="there is no prompt"):
        prompt_text(None, piped)


@pytest.mark.parametrize(("text", "value"), [(None, None), ("5m", "5m"), ("0", 0), ("-1", -1), ("90", 90)])
def test_keep_alive(text: str | None, value: str | int | None) -> None:
    assert keep_alive(text) == value


def test_keep_alive_refuses_what_the_server_would() -> None:
    with pytest.raises(WrongUsage, match='"soon" is not a duration'):
        keep_alive("soon")


@pytest.mark.parametrize(
    ("model", "answer"),
    [("smollm2", True), ("SmolLM2:135m", True), ("smollm2:latest", False), ("smol", False), ("135m", False)],
)
def test_a_loaded_model_is_known_with_and_without_its_tag(model: str, answer: bool) -> None:
    assert is_loaded(model, ["other:latest", "smollm2:135m"]) is answer


def test_show_has_the_sections_that_have_content() -> None:
    info = {
        "model_info": {
            "general.architecture": "llama",
            "general.parameter_count": 134_515_008,
            "llama.context_length": 8192,
            "llama.embedding_length": 576,
        },
        "details": {"family": "llama", "quantization_level": "Q4_1"},
        "capabilities": ["completion", "tools"],
        "parameters": 'stop                           "<|im_end|>"\nnum_ctx                        2048',
        "license": "Apache License\n\n  Version 2.0\nJanuary 2004\n",
        "system": "",
    }
    assert (
        summary(info)
        == """\
  Model
    architecture        llama
    parameters          134.52M
    context length      8192
    embedding length    576
    quantization        Q4_1

  Capabilities
    completion
    tools

  Parameters
    stop       "<|im_end|>"
    num_ctx    2048

  License
    Apache License
    Version 2.0
    ..."""
    )
