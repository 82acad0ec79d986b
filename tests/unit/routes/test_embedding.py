"""What becomes of the vectors of an engine before a client gets them."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.errors import InvalidRequest
from daemon.routes.embedding import normal


def test_a_vector_has_length_1() -> None:
    assert normal((3.0, 4.0), None) == (0.6, 0.8)


def test_of_fewer_dimensions_too() -> None:
    assert normal((3.0, 4.0, 12.0), 2) == (0.6, 0.8)
    assert normal((-3.0, 4.0), 1) == (-1.0,)
    assert normal((3.0, 4.0), 2) == (0.6, 0.8)


def test_more_dimensions_than_there_are() -> None:
    with pytest.raises(InvalidRequest, match="dimensions is 3, and the model's vectors have only 2"):
        normal((3.0, 4.0), 3)


def test_nothing_stays_nothing() -> None:
    assert normal((0.0, 0.0), None) == (0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(bad: float) -> None:
    """JSON has no word for it."""
    with pytest.raises(InvalidRequest, match="contains NaN or Inf"):
        normal((1.0, bad), None)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20), st.data())
def test_the_direction_stays(vector: Sequence[float], data: st.DataObject) -> None:
    dimensions = data.draw(st.integers(1, len(vector)))
    made = normal(vector, dimensions)
    assert len(made) == dimensions
    length = math.hypot(*vector[:dimensions])
    if length < 1e-30:
        return
    assert math.isclose(math.hypot(*made), 1, rel_tol=1e-6)
    for before, after in zip(vector, made, strict=False):
        assert math.isclose(after * length, before, rel_tol=1e-6, abs_tol=1e-30)
