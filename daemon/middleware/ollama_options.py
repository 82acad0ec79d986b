"""What the requests of all of Ollama's routes have in common: the model, how long it stays, and `options`.

Source: Ollama's API documentation and the types of its server. Options that mgr does not know are ignored, the ones
that Ollama has given up among them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from daemon.chat import LoadOptions, LoadRequest, Sampling
from daemon.middleware import request as pieces
from daemon.middleware.fields import BadField, Fields

MIN_WINDOW = 4


@dataclass(frozen=True, slots=True)
class Target:
    """Which model is meant, how it is loaded, and how its tokens are chosen."""

    model: str
    keep_alive: float | None
    load: LoadOptions
    sampling: Sampling

    @classmethod
    def read(cls, fields: Fields) -> Self:
        sampling, load = _options(fields.object("options"))
        return cls(pieces.model(fields), pieces.keep_alive(fields), load, sampling)

    def load_only(self, *, embed: bool = False) -> LoadRequest:
        return LoadRequest(model=self.model, load=self.load, keep_alive=self.keep_alive, embed=embed)


def read_options(parameters: Mapping[str, Any]) -> tuple[Sampling, LoadOptions]:
    """The options that a model brings along, stored under the names that `options` of a request has.

    Raises InvalidRequest.
    """
    return _options(Fields(parameters, "the model's parameter "))


def _options(options: Fields) -> tuple[Sampling, LoadOptions]:
    sampling = pieces.sampling(options, max_tokens=_num_predict(options), max_temperature=100)
    return sampling, _load_options(options)


def _num_predict(options: Fields) -> int | None:
    count = options.integer("num_predict", -pieces.MAX_INT, pieces.MAX_INT)
    if count == 0:
        raise BadField(options.name("num_predict"), "must be at least 1, or -1 for no limit, not 0")
    return count if count is None else max(count, -1)


def _load_options(options: Fields) -> LoadOptions:
    """Zero, and for num_gpu -1, is "automatic"."""
    window = options.integer("num_ctx", 0, pieces.MAX_WINDOW)
    gpu_layers = options.integer("num_gpu", -1, 100_000)
    return LoadOptions(
        window=max(window, MIN_WINDOW) if window else None,
        gpu_layers=None if gpu_layers == -1 else gpu_layers,
        threads=options.integer("num_thread", 0, 1024) or None,
        batch=options.integer("num_batch", 0, 65_536) or None,
        main_gpu=options.integer("main_gpu", 0, 1023),
        mmap=options.boolean("use_mmap"),
    )
