"""Which file of a repository is meant."""

import pytest

from daemon.errors import InvalidRequest, NotFound, NotSupported
from daemon.pull.huggingface import RepoFile, _url, choose_file
from daemon.pull.source import HubSource

FILES = [
    RepoFile("README.md"),
    RepoFile("M-Q4_K_M.gguf"),
    RepoFile("M-Q8_0.gguf"),
    RepoFile("mmproj-M-Q8_0.gguf"),
    RepoFile("M-imatrix.gguf"),
    RepoFile("big/M-F16-00001-of-00002.gguf"),
    RepoFile("big/M-F16-00002-of-00002.gguf"),
]


def chosen(files: list[RepoFile], quant: str | None = None, file: str | None = None) -> str:
    return choose_file(HubSource("u", "r", quant, file), files).name


def test_one_file_is_chosen() -> None:
    assert chosen(FILES) == "M-Q4_K_M.gguf"
    assert chosen(FILES, "q8_0") == "M-Q8_0.gguf"
    assert chosen(FILES, file="M-Q8_0.gguf") == "M-Q8_0.gguf"
    assert chosen([RepoFile("M-Q2_K.gguf")]) == "M-Q2_K.gguf"
    assert chosen([RepoFile("whatever.gguf"), RepoFile("config.json")]) == "whatever.gguf"


@pytest.mark.parametrize(
    ("files", "quant", "file", "words"),
    [
        (FILES, "Q5_K_M", None, r"Q5_K_M not found in hf.co/u/r; write .* one of F16, Q4_K_M, Q8_0"),
        (FILES[2:], None, None, r"no quantisation was named; write .* one of F16, Q8_0"),
        (
            FILES,
            None,
            "absent.gguf",
            r"hf.co/u/r/absent.gguf not found; name one as .*: M-Q4_K_M.gguf, M-Q8_0",
        ),
        (FILES[:1], None, None, "it has no GGUF model"),
        (
            [RepoFile("a/M-Q4_0.gguf"), RepoFile("b/M-Q4_0.gguf")],
            "Q4_0",
            None,
            "several files.*a/M-Q4_0.gguf, b/M",
        ),
        (
            [RepoFile("a.gguf"), RepoFile("b.gguf")],
            None,
            None,
            "name one as hf.co/u/r/<file>: a.gguf, b.gguf",
        ),
    ],
)
def test_no_single_file(files: list[RepoFile], quant: str | None, file: str | None, words: str) -> None:
    with pytest.raises(NotFound, match=words):
        chosen(files, quant, file)


def test_a_split_model_is_not_supported_yet() -> None:
    with pytest.raises(NotSupported, match=r"hf\.co/u/r:F16 is split into several files"):
        chosen(FILES, "F16")


def test_the_address_of_a_file_stays_in_its_repository() -> None:
    source = HubSource("u", "r")
    assert (
        _url(source, "http://hub", "main", "a b/x?#%.gguf")
        == "http://hub/u/r/resolve/main/a%20b/x%3F%23%25.gguf"
    )
    with pytest.raises(InvalidRequest):
        _url(source, "http://hub", "main", "../../other/repo/resolve/main/x.gguf")
