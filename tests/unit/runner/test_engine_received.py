"""What an engine sends, believed in nothing: values of a wrong type, and what its errors mean."""

import pytest

from daemon.errors import EngineFailed, InvalidRequest, PromptTooLong
from daemon.runner.received import error_from, number


def test_a_prompt_beyond_the_window_carries_both_counts() -> None:
    error = error_from(
        {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 9000, "n_ctx": 4096}, 400
    )
    assert isinstance(error, PromptTooLong)
    assert (error.needed, error.available) == (9000, 4096)


def test_an_error_tells_no_path_of_the_engines_machine() -> None:
    error = error_from({"code": 500, "message": "cannot open /srv/models/x.gguf"}, 500)
    assert error.message == "the engine failed: cannot open <path>"


def test_other_refusals_are_the_clients_fault_and_failures_are_not() -> None:
    assert isinstance(error_from({"code": 400, "message": "bad grammar"}, 400), InvalidRequest)
    assert isinstance(error_from({"code": 500, "message": "oops"}, 500), EngineFailed)
    assert isinstance(error_from("text", 502), EngineFailed)
    assert isinstance(error_from({"code": 401, "message": "key"}, 401), EngineFailed)


@pytest.mark.parametrize(
    ("code", "message", "said"),
    [
        (501, "Infill is not supported by this model: prefix token is missing. ", "does not support insert"),
        (500, "image input is not supported - hint: if this is unexpected, ...", "does not support images"),
        (500, "Failed to load image or audio file", "cannot be decoded"),
        (400, "Failed to initialize samplers: std::exception", "format cannot be kept to"),
        (400, "Input content cannot be empty", "the text is empty"),
        (
            500,
            "While executing: Jinja Exception: roles must alternate",
            "refuses this conversation: roles must",
        ),
    ],
)
def test_what_the_request_is_to_blame_for_is_said_in_plain_words(code: int, message: str, said: str) -> None:
    error = error_from({"code": code, "message": message}, code)
    assert isinstance(error, InvalidRequest)
    assert said in error.message


@pytest.mark.parametrize(
    "message",
    [
        "input (513 tokens) is too large to process. increase the physical batch size (current batch size: 512)",
        "input (513 tokens) is larger than the max context size (512 tokens). skipping",
    ],
)
def test_a_text_beyond_what_gives_one_vector_is_a_prompt_that_is_too_long(message: str) -> None:
    error = error_from({"code": 500, "message": message}, 500)
    assert isinstance(error, PromptTooLong)
    assert (error.needed, error.available) == (513, 512)


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1.0), (-0.5, -0.5), (float("nan"), 0.0), ("1", 0.0), (None, 0.0)]
)
def test_a_number_is_finite(value: object, expected: float) -> None:
    assert number(value) == expected
