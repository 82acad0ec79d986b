"""The poison rule: a request that ends the engine again and again is refused, instead of its model. Pure.

Whoever is in flight when an engine crashes is a suspect, known by a fingerprint. The rule:

1. Of those in flight, the ones that were in an earlier crash explain this one better than those that were not. So
   where there are any, only they get a mark for it; and of them only those that were alone in it, if any were.
2. Marks are remembered for ten minutes after the last. The second is the proof: the request is refused for as long
   as that is remembered, and none of its crashes counts against the model.
3. A request that is answered to its end is no poison: its marks are gone.

One crash is never proof, not even for a request that was alone in flight: memory runs out, machines and people kill.
Requests that were in one crash together and are repeated together would be convicted together. So a suspect should
not be in flight with another suspect (`is_suspect`); with others it may be, as by rule 1 they are not blamed.

A fingerprint is the model and what the engine is asked, without what is random or the client's own: the same prompt
with another seed, streamed or not, is the same request. Whoever changes the text is another one; against that stands
the breaker. Times are monotonic seconds.
"""

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from daemon.chat import Request
from daemon.errors import Poisonous

PROOF = 2  # marks
REMEMBERED_SECONDS = 600.0
MAX_SUSPECTS = 1000

# Random, or about the client and not about the work. The model is told by its files instead of by its name.
_LEFT_OUT = frozenset({"model", "keep_alive", "stream", "include_usage", "seed", "id", "tool_call_id"})


def fingerprint(model: str, request: Request) -> bytes:
    """16 bytes that are equal for requests that ask the engine the same. `model` stands for its files
    (`Weights.key`). Takes as long as writing the request as JSON."""
    text = json.dumps([model, request], default=_plain, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _plain(value: object) -> dict[str, Any]:
    if is_dataclass(value):
        names = (field.name for field in fields(value) if field.name not in _LEFT_OUT)
        return {"": type(value).__name__, **{name: getattr(value, name) for name in names}}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a request has no {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class _Suspect:
    """`crashes` are the moments of its last marks; `alone`: no other request was in flight at the last."""

    crashes: tuple[float, ...] = ()
    alone: bool = False

    @property
    def is_proven(self) -> bool:
        return len(self.crashes) >= PROOF

    @property
    def until(self) -> float:
        return self.crashes[-1] + REMEMBERED_SECONDS


class Poison:
    """Who is suspected, and who is refused, by fingerprint. Empty nearly always: only then `bool` of it is False, and
    nobody needs to compute a fingerprint."""

    def __init__(self) -> None:
        self._suspects: dict[bytes, _Suspect] = {}  # the one with the newest mark comes last

    def __len__(self) -> int:
        return len(self._suspects)

    def is_suspect(self, fingerprint: bytes, now: float) -> bool:
        self._forget(now)
        return fingerprint in self._suspects

    def refusal(self, fingerprint: bytes, now: float) -> Poisonous | None:
        suspect = self._suspects.get(fingerprint)
        if suspect is None or not suspect.is_proven or now >= suspect.until:
            return None
        return Poisonous(
            f"this request is refused for another {math.ceil(suspect.until - now)} s, as the engine crashed on it "
            "repeatedly; change the request, or use another model"
        )

    def crashed(self, in_flight: Collection[bytes], now: float) -> tuple[float, ...]:
        """An engine crashed with these in flight. The moments of all crashes that are explained now, this one
        included; none where it counts against the model."""
        self._forget(now)
        suspects = set(in_flight)
        explained: set[float] = set()
        for blamed in self._blamed(suspects):
            before = self._suspects.pop(blamed, _Suspect())
            suspect = _Suspect((*before.crashes, now)[-PROOF:], len(suspects) == 1)
            self._suspects[blamed] = suspect
            if suspect.is_proven:
                explained.update(suspect.crashes)
        while len(self._suspects) > MAX_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]
        return tuple(sorted(explained))

    def answered(self, fingerprint: bytes) -> None:
        """The engine gave the whole answer to this request, and lives."""
        self._suspects.pop(fingerprint, None)

    def reset(self) -> None:
        """By hand, or because there is another engine."""
        self._suspects.clear()

    def _blamed(self, in_flight: set[bytes]) -> set[bytes]:
        """Rule 1."""
        known = {one for one in in_flight if one in self._suspects}
        alone = {one for one in known if self._suspects[one].alone}
        return alone or known or in_flight

    def _forget(self, now: float) -> None:
        while self._suspects:
            oldest = next(iter(self._suspects))
            if now < self._suspects[oldest].until:
                break
            del self._suspects[oldest]
