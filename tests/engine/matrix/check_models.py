"""Vectors, counts of tokens, and what is told of models."""

import math
from dataclasses import replace

import pytest

from tests.engine.matrix.anthropic_api import Messages
from tests.engine.matrix.asks import MODEL, Ask, user
from tests.engine.matrix.cells import Cell
from tests.engine.matrix.prompts import CONVERSATION, SMALL_MODEL, TEXTS, TOOL_ASK, TOOLS_MODEL


def embedding(cell: Cell) -> None:
    [vector] = _vectors(cell, TEXTS[0])
    assert len(vector) == 576
    assert math.hypot(*vector) == pytest.approx(1, abs=1e-3)
    assert vector == pytest.approx(cell.bench.agreed(TEXTS[0], vector), abs=1e-4)


def embedding_old(cell: Cell) -> None:
    [new] = _vectors(cell, TEXTS[0])
    old = cell.value("embeddings", "whole", model=MODEL, prompt=TEXTS[0])["embedding"]
    assert old == pytest.approx(new, abs=1e-4)


def batch(cell: Cell) -> None:
    """Each item of a batch gets what it gets alone, in their order."""
    if cell.api == "completions":
        ask = Ask(turns=tuple(user(text) for text in TEXTS), limit=8)
        assert cell.told(ask).texts == tuple(
            cell.engine(replace(ask, turns=(turn,))).text for turn in ask.turns
        )
        return
    vectors = _vectors(cell, list(TEXTS))
    assert len(vectors) == len(TEXTS)
    for text, vector in zip(TEXTS, vectors, strict=True):
        [alone] = _vectors(cell, text)
        assert vector == pytest.approx(alone, abs=1e-4)
    assert vectors[0] != pytest.approx(vectors[1], abs=1e-2)


def _vectors(cell: Cell, texts: str | list[str]) -> list[list[float]]:
    if cell.api == "ollama":
        vectors = cell.value("embed", "whole", model=MODEL, input=texts)["embeddings"]
    else:
        reply = cell.value("embeddings.create", "whole", model=MODEL, input=texts)
        assert [item["index"] for item in reply["data"]] == list(range(len(reply["data"])))
        vectors = [item["embedding"] for item in reply["data"]]
    assert isinstance(vectors, list)
    return vectors


def token_count(cell: Cell) -> None:
    """The count of a prompt is what the same prompt costs."""
    for ask in (Ask(turns=CONVERSATION, system="Be short.", limit=1), replace(TOOL_ASK, limit=1)):
        count = cell.value("messages.count_tokens", "whole", **Messages().prompt(ask))
        assert count["input_tokens"] == cell.told(ask).prompt_tokens


def models_listed(cell: Cell) -> None:
    expected = {f"{name}:latest" for name in (TOOLS_MODEL, SMALL_MODEL)} | {"smollm2:135m"}
    if cell.api == "ollama":
        models = cell.value("list", "whole")["models"]
        names = {model["model"] for model in models}
        assert all(model["size"] > 90_000_000 for model in models)
        assert {model["details"]["family"] for model in models} == {"llama"}
    else:
        names = {model["id"] for model in cell.value("models.list", "items")}
    assert names >= expected


def model_shown(cell: Cell) -> None:
    if cell.api == "ollama":
        # The client for Python takes the name, the one for Node an object.
        shown = (
            cell.value("show", "whole", TOOLS_MODEL)
            if cell.language == "python"
            else cell.value("show", "whole", model=TOOLS_MODEL)
        )
        assert sorted(shown["capabilities"]) == ["completion", "tools"]
        assert "tools" in shown["template"]
        info = shown.get("model_info") or shown["modelinfo"]
        assert info["llama.context_length"] == 8192
        return
    for name in (MODEL, "smollm2:135m"):
        assert cell.value("models.retrieve", "whole", name)["id"] == name
    failure = cell.call("models.retrieve", "whole", "nothing/such")["error"]
    assert (failure["name"], failure["status"]) == ("NotFoundError", 404)
