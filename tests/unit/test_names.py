import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import InvalidRequest
from daemon.names import BadName, ModelName

D = "registry.ollama.ai"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("smollm2", (D, "library", "smollm2", "latest")),
        ("smollm2:135m", (D, "library", "smollm2", "135m")),
        ("me/smollm2", (D, "me", "smollm2", "latest")),
        ("hf.co/user/Repo-GGUF:Q4_K_M", ("hf.co", "user", "Repo-GGUF", "Q4_K_M")),
        ("localhost:5000/ns/m", ("localhost:5000", "ns", "m", "latest")),
        ("localhost:5000/ns/m:t", ("localhost:5000", "ns", "m", "t")),
        ("https://host/ns/m:t", ("host", "ns", "m", "t")),
        ("ollama://m", (D, "library", "m", "latest")),
        ("a..b", (D, "library", "a..b", "latest")),
        ("_m:_t", (D, "library", "_m", "_t")),
        ("m" * 80, (D, "library", "m" * 80, "latest")),
    ],
)
def test_parse(text: str, parts: tuple[str, ...]) -> None:
    name = ModelName.parse(text)
    assert name.path.parts == parts
    assert name.full == f"{parts[0]}/{parts[1]}/{parts[2]}:{parts[3]}"


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "/", "m:", ":t", "a/b/c/d", "/m", "m/", "a//m", "m:t:u", "n.s/m", "h/n.s/m"),
        *("..", "../m", "a/../m", "m:..", ".m", "-m", "m:-t", "~/m", "%2e%2e/m", "m\\n"),
        *("a b", "m\n", "m\x00", "\u00e9", "m@sha256:aa", "http://"),
        *("m" * 81, "m:" + "t" * 81, "n" * 81 + "/m", "h" * 351 + "/n/m"),
        *("ns/x://m", "h/n/x://m", "https://http://m"),
    ],
)
def test_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(BadName) as caught:
        ModelName.parse(text)
    assert isinstance(caught.value, InvalidRequest)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("m", "m:latest"),
        ("library/m", "m:latest"),
        (f"{D}/library/m:t", "m:t"),
        (f"{D}/me/m:t", "me/m:t"),
        ("h/library/m", "h/library/m:latest"),
    ],
)
def test_str_is_the_shortest_form(text: str, shown: str) -> None:
    assert str(ModelName.parse(text)) == shown


def test_key_ignores_case_and_parts_keep_it() -> None:
    name = ModelName.parse("HF.co/User/Repo:Q4")
    assert name.key == ModelName.parse("hf.co/user/repo:q4").key == "hf.co/user/repo:q4"
    assert name.path.parts == ("HF.co", "User", "Repo", "Q4")


def test_with_tag() -> None:
    assert ModelName.parse("m").with_tag("t") == ModelName("m", "t")
    with pytest.raises(BadName):
        ModelName.parse("m").with_tag("../t")


def test_constructor_validates_too() -> None:
    with pytest.raises(BadName):
        ModelName("m", namespace="..")


_ALPHABET = st.sampled_from("aB3_-.:/ \n\\é~%")
_PART = st.text(st.sampled_from("aB3_-.:"), min_size=1, max_size=90)


@given(st.text(_ALPHABET) | st.text() | st.lists(_PART, min_size=1, max_size=4).map("/".join))
def test_accepted_names_are_safe_and_stable(text: str) -> None:
    try:
        name = ModelName.parse(text)
    except BadName:
        return
    assert len(name.path.parts) == 4
    assert not name.path.is_absolute()
    assert not {"", ".", ".."} & set(name.path.parts)
    assert not any(separator in part for part in name.path.parts for separator in "/\\\x00\n")
    again = ModelName.parse(str(name))
    assert again == name
    assert ModelName.parse(name.full) == again
