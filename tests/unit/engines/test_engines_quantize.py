"""The program beside the engine that makes a model smaller."""

from pathlib import Path

import pytest

from daemon.engines.quantize import tool_of
from daemon.errors import InvalidRequest
from daemon.runner.engine import Engine


def test_it_is_looked_for_beside_the_engine(tmp_path: Path) -> None:
    engine = Engine("built", (str(tmp_path / "llama-server"),), "b1", frozenset())
    with pytest.raises(
        InvalidRequest, match=r"\(built\) has no llama-quantize.*`mgr engine build`"
    ) as caught:
        tool_of(engine)
    assert str(tmp_path) not in caught.value.message
    (tmp_path / "llama-quantize").touch()
    assert tool_of(engine) == tmp_path / "llama-quantize"
