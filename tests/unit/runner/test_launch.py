"""Arguments come from typed fields and the engine's own help; the environment from nothing."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from daemon.errors import LoadFailed
from daemon.runner.launch import Launch, arguments, environment

LAUNCH = Launch(model=Path("/m/-x.gguf"), alias="a:b", window=1024, slots=3)
NEEDED = frozenset({"--model", "--host", "--ctx-size", "--parallel"})
SOCKET = Path("/run/x.sock")


def pairs(arguments: list[str]) -> dict[str, str]:
    return {a: b for a, b in itertools.pairwise(arguments) if a.startswith("--")}


def test_each_request_has_the_whole_window() -> None:
    assert pairs(arguments(LAUNCH, SOCKET, NEEDED, cpu_only=False))["--ctx-size"] == "3072"


def test_only_known_flags_are_passed_and_in_a_spelling_that_is_known() -> None:
    given = arguments(LAUNCH, SOCKET, NEEDED | {"--no-webui", "-b"}, cpu_only=False)
    assert "--no-webui" in given
    assert "--no-ui" not in given
    assert given[given.index("-b") + 1] == "512"
    assert not {"--metrics", "--alias", "--cache-ram"} & set(given)


def test_a_batch_is_smaller_where_only_a_cpu_works_and_as_asked_where_it_is_asked() -> None:
    known = NEEDED | {"--batch-size"}
    sizes = [pairs(arguments(LAUNCH, SOCKET, known, cpu_only=cpu))["--batch-size"] for cpu in (True, False)]
    assert sizes == ["256", "512"]
    asked = replace(LAUNCH, batch=64)
    assert pairs(arguments(asked, SOCKET, known, cpu_only=True))["--batch-size"] == "64"


def test_an_engine_without_a_needed_flag_is_refused_for_good() -> None:
    with pytest.raises(LoadFailed, match="does not know --ctx-size") as caught:
        arguments(LAUNCH, SOCKET, NEEDED - {"--ctx-size"}, cpu_only=False)
    assert caught.value.permanent


def test_load_time_options_become_flags() -> None:
    launch = Launch(
        model=Path("/m"), alias="a", window=1, slots=1, gpu_layers=0, threads=2, main_gpu=1, mmap=False
    )
    known = NEEDED | {"--n-gpu-layers", "--threads", "--main-gpu", "--no-mmap"}
    given = arguments(launch, SOCKET, known, cpu_only=False)
    assert pairs(given)["--n-gpu-layers"] == "0"
    assert pairs(given)["--threads"] == "2"
    assert pairs(given)["--main-gpu"] == "1"
    assert "--no-mmap" in given
    newer = arguments(launch, SOCKET, known | {"--load-mode"}, cpu_only=False)
    assert pairs(newer)["--load-mode"] == "none"


def test_an_engine_for_vectors_takes_a_whole_text_at_once() -> None:
    known = NEEDED | {"--batch-size", "--ubatch-size", "--embeddings", "--pooling", "--rerank"}
    embeds = arguments(
        replace(LAUNCH, embedding=True, pooling="mean", batch=64), SOCKET, known, cpu_only=True
    )
    assert (
        pairs(embeds).items()
        >= {"--batch-size": "1024", "--ubatch-size": "1024", "--pooling": "mean"}.items()
    )
    assert "--embeddings" in embeds
    ranks = arguments(replace(LAUNCH, reranking=True), SOCKET, known, cpu_only=True)
    assert pairs(ranks).items() >= {"--batch-size": "1024", "--ubatch-size": "1024"}.items()
    assert "--rerank" in ranks
    assert not {"--embeddings", "--pooling"} & {*ranks}
    plain = arguments(LAUNCH, SOCKET, known, cpu_only=True)
    assert not {"--embeddings", "--pooling", "--rerank", "--ubatch-size"} & {*plain}


@pytest.mark.parametrize("purpose", ["embedding", "reranking"])
def test_texts_for_vectors_are_worked_on_one_after_the_other(purpose: str) -> None:
    """Together they would change each other's vectors."""
    known = NEEDED | {"--ubatch-size", "--embeddings", "--rerank"}
    launch = replace(LAUNCH, slots=3, embedding=purpose == "embedding", reranking=purpose == "reranking")
    given = pairs(arguments(launch, SOCKET, known, cpu_only=True))
    assert (given["--parallel"], given["--ctx-size"]) == ("1", "1024")


def test_files_beside_the_model_become_flags() -> None:
    launch = replace(
        LAUNCH,
        template=Path("/t.jinja"),
        projector=Path("/p.gguf"),
        adapters=(Path("/a.gguf"), Path("/b.gguf")),
    )
    known = NEEDED | {"--jinja", "--chat-template-file", "--mmproj", "--lora"}
    given = arguments(launch, SOCKET, known, cpu_only=True)
    assert given[-9:] == [
        "--jinja", "--chat-template-file", "/t.jinja", "--mmproj", "/p.gguf", "--lora", "/a.gguf", "--lora", "/b.gguf",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "asked",
    [
        {"embedding": True},
        {"reranking": True},
        {"pooling": "mean"},
        {"template": Path("/t")},
        {"projector": Path("/p")},
        {"adapters": (Path("/a"),)},
    ],
)
def test_what_an_engine_is_for_is_never_left_out(asked: dict[str, Any]) -> None:
    with pytest.raises(LoadFailed, match="does not know"):
        arguments(replace(LAUNCH, **asked), SOCKET, NEEDED, cpu_only=True)


def test_the_environment_holds_no_secret_and_no_setting_of_the_engine() -> None:
    parent = {
        "PATH": "/bin", "HF_TOKEN": "s", "MGR_API_KEY": "s", "LLAMA_ARG_ALIAS": "x", "LD_PRELOAD": "/x",
        "HTTP_PROXY": "http://p", "PYTHONPATH": "/x", "CUDA_VISIBLE_DEVICES": "1", "HOME": "/home/me",
    }  # fmt: skip
    assert environment(parent, "key", Path("/run/mgr")) == {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "1",
        "HOME": "/run/mgr",
        "LLAMA_API_KEY": "key",
    }
