from typing import Any

import pytest

from daemon.errors import InvalidRequest, NotSupported
from daemon.middleware.fields import BadField, FieldNotSupported, Fields, shown


def test_values_are_read_by_type() -> None:
    fields = Fields({"s": "x", "b": False, "n": 1, "f": 0.5, "i": 5.0, "o": {"k": "v"}, "a": ["x", "y"]})
    assert fields.string("s") == fields.required("s") == "x"
    assert fields.boolean("b") is False
    assert fields.number("n", 0, 1) == 1.0
    assert fields.number("f", 0, 1) == 0.5
    integer = fields.integer("i", 0, 5)
    assert (integer, type(integer)) == (5, int)
    assert fields.object("o").string("k") == "v"
    assert fields.strings("s") == ("x",)
    assert fields.strings("a") == ("x", "y")


@pytest.mark.parametrize("data", [{}, {"k": None}])
def test_null_is_absent(data: dict[str, Any]) -> None:
    fields = Fields(data)
    assert fields.string("k") is None
    assert fields.boolean("k") is None
    assert fields.number("k", 0, 1) is None
    assert fields.integer("k", 0, 1) is None
    assert fields.strings("k") is None
    assert fields.object("k").data == {}
    assert fields.objects("k") == []
    fields.refuse_unbuilt({"k": ()})
    with pytest.raises(BadField, match=r"^k is required$"):
        fields.required("k")


@pytest.mark.parametrize(
    ("method", "arguments", "value", "message"),
    [
        ("string", (), 5, "k must be a string, not 5"),
        ("string", (), ["x"], "k must be a string, not an array"),
        ("required", (), {}, "k must be a string, not an object"),
        ("boolean", (), "true", 'k must be true or false, not "true"'),
        ("boolean", (), 1, "k must be true or false, not 1"),
        ("number", (0, 2), "1", 'k must be a number from 0 to 2, not "1"'),
        ("number", (0, 2), True, "k must be a number from 0 to 2, not true"),
        ("number", (0, 2), 2.1, "k must be a number from 0 to 2, not 2.1"),
        ("number", (0, 2), -1, "k must be a number from 0 to 2, not -1"),
        ("number", (0, 2), 10**99, f"k must be a number from 0 to 2, not {10**99}"),
        ("integer", (-1, 9), 1.5, "k must be an integer from -1 to 9, not 1.5"),
        ("integer", (-1, 9), False, "k must be an integer from -1 to 9, not false"),
        ("integer", (-1, 9), 10, "k must be an integer from -1 to 9, not 10"),
        ("integer", (-1, 9), 1e300, "k must be an integer from -1 to 9, not 1e+300"),
        ("strings", (), 1, "k must be a string or an array of strings"),
        ("strings", (), ["x", 1], "k must be a string or an array of strings"),
        ("object", (), [], "k must be an object, not an array"),
        ("objects", (), {}, "k must be an array, not an object"),
        ("objects", (), [{}, 1], "k[1] must be an object, not 1"),
    ],
)
def test_wrong_values_are_named(method: str, arguments: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(BadField) as caught:
        getattr(Fields({"k": value}), method)("k", *arguments)
    assert caught.value.message == message
    assert isinstance(caught.value, InvalidRequest)
    assert caught.value.message.startswith(caught.value.field)


def test_names_are_full() -> None:
    fields = Fields({"m": [{}, {"o": {"k": 1}}]})
    with pytest.raises(BadField) as caught:
        fields.objects("m")[1].object("o").string("k")
    assert caught.value.field == "m[1].o.k"


def test_unbuilt_values_are_compared_with_their_type() -> None:
    off: dict[str, tuple[Any, ...]] = {"k": (False, [])}
    meaning_off: list[Any] = [False, []]
    for value in meaning_off:
        Fields({"k": value}).refuse_unbuilt(off)
    others: list[Any] = [0, "", True, [1], {}, 0.0]
    for value in others:
        with pytest.raises(FieldNotSupported) as caught:
            Fields({"k": value}, "o.").refuse_unbuilt(off)
        assert caught.value.field == "o.k"
        assert isinstance(caught.value, NotSupported)


def test_shown_is_short_ascii() -> None:
    assert shown("é\n") == '"\\u00e9\\n"'
    assert shown("x" * 61) == '"' + "x" * 60 + '"...'
    assert shown({"a": 1}) == "an object"
    assert shown(True) == "true"
    assert len(shown("\0" * 10**6)) < 400
