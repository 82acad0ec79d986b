"""Rules that turn a header into words."""

import pytest

from daemon.store.capabilities import capabilities
from daemon.store.summary import Summary, Value

TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"


def summary(**metadata: Value) -> Summary:
    keys = {key.replace("__", "."): value for key, value in metadata.items()}
    return Summary({"general.architecture": "qwen3", **keys}, {}, ())


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({}, ("completion",)),
        ({"qwen3__pooling_type": 1}, ("embedding",)),
        ({"bert__pooling_type": 1}, ("completion",)),
        ({"qwen3__vision__block_count": 2}, ("completion", "vision")),
        ({"qwen3__audio__block_count": 2}, ("completion", "audio")),
        ({"tokenizer__chat_template": TOOLS}, ("completion", "tools")),
        ({"tokenizer__chat_template": "{{ message.tool_call }}"}, ("completion", "tools")),
        ({"tokenizer__chat_template": "<think>{{ x }}</think>"}, ("completion", "thinking")),
        ({"tokenizer__chat_template": "x.split('</think>')[-1]"}, ("completion", "thinking")),
        ({"tokenizer__chat_template": "x.split('</think>') reasoning_content"}, ("completion",)),
        ({"tokenizer__chat_template": "</think>"}, ("completion",)),
        (
            {"tokenizer__ggml__fim_pre_token_id": 1, "tokenizer__ggml__fim_suf_token_id": 3},
            ("completion", "insert"),
        ),
        ({"tokenizer__ggml__fim_pre_token_id": 1}, ("completion",)),
    ],
)
def test_words(metadata: dict[str, Value], words: tuple[str, ...]) -> None:
    assert capabilities(summary(**metadata)) == words


def test_projectors_and_claims() -> None:
    silent, hearing = summary(), summary(clip__has_audio_encoder=True)
    assert capabilities(summary(), [silent]) == ("completion", "vision")
    assert capabilities(summary(), [silent, hearing], ["tools", "vision"]) == (
        "tools",
        "vision",
        "completion",
        "audio",
    )


def test_a_template_goes_before_the_one_in_the_file() -> None:
    own = summary(tokenizer__chat_template=TOOLS)
    assert capabilities(own, template="{{ messages }}") == ("completion",)
    assert capabilities(summary(), template=TOOLS) == ("completion", "tools")
