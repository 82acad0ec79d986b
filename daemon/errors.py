"""Every error that mgr raises on purpose, in one tree.

MgrError
├── InvalidRequest            the request is wrong; saying it again will not help
│   ├── PromptTooLong         ... because it does not fit the window
│   └── Poisonous             ... because engines crash on it
├── NotSupported              understood, and not built
├── Unauthorized              no key, or a wrong one
├── Forbidden                 refused by policy (host, origin, path)
├── NotFound
│   └── ModelNotFound
├── Conflict                  would overwrite something unasked
├── BodyTooLarge
├── Busy                      queue or slots are full, or the wait was too long; try again later
├── LoadFailed                the engine did not start
│   └── OutOfMemory           ... because there was not enough memory: there may be, once others have gone
├── EngineFailed              the engine broke or refused after it had started
│   ├── EngineGone            ... before it answered at all: another one may be asked
│   ├── EngineDied            it ended by itself, or was killed
│   └── EngineHung            it ran, sent nothing, and was ended
│       └── EngineSilent      ... before it answered at all (an EngineGone, too)
├── BadModel                  the file is not a model that can be used
├── PullFailed                a source did not deliver
├── StorageFailed             the store cannot be read or written
└── Misconfigured             a setting is wrong; the daemon refuses to start

An error knows its kind; the dialect chooses status and envelope (`middleware/dialect.py`). The message is one
sentence for the person who made the request: what is wrong, with which value, what to do.
"""

from enum import StrEnum
from typing import ClassVar


class Kind(StrEnum):
    INVALID = "invalid"
    TOO_LONG = "too_long"
    POISON = "poison"
    NOT_SUPPORTED = "not_supported"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    TOO_LARGE = "too_large"
    BUSY = "busy"
    LOAD_FAILED = "load_failed"
    UPSTREAM = "upstream"
    TIMEOUT = "timeout"
    BAD_MODEL = "bad_model"
    PULL_FAILED = "pull_failed"
    STORAGE = "storage"
    MISCONFIGURED = "misconfigured"
    INTERNAL = "internal"


class MgrError(Exception):
    """The base; raise a child."""

    kind: ClassVar[Kind] = Kind.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(MgrError):
    kind = Kind.INVALID


class PromptTooLong(InvalidRequest):
    """The prompt needs more tokens than the window has. Counts are tokens; 0 where the engine did not tell.

    `what` is how the message names it.
    """

    kind = Kind.TOO_LONG

    def __init__(self, needed: int, available: int, what: str = "the prompt") -> None:
        super().__init__(
            f"{what} has {needed} tokens and the context window has {available}; "
            "shorten it, or ask for a larger window"
        )
        self.needed = needed
        self.available = available


class Poisonous(InvalidRequest):
    """Engines crashed on this request, so it is not given to another."""

    kind = Kind.POISON


class NotSupported(MgrError):
    kind = Kind.NOT_SUPPORTED


class Unauthorized(MgrError):
    kind = Kind.UNAUTHORIZED


class Forbidden(MgrError):
    kind = Kind.FORBIDDEN


class NotFound(MgrError):
    kind = Kind.NOT_FOUND


class ModelNotFound(NotFound):
    """Ollama's clients look for the words "not found". `similar` is the name that may have been meant."""

    def __init__(self, name: str, similar: str | None = None) -> None:
        hint = f"; did you mean '{similar}'?" if similar else ""
        super().__init__(f"model '{name}' not found{hint}")
        self.name = name


class Conflict(MgrError):
    kind = Kind.CONFLICT


class BodyTooLarge(MgrError):
    kind = Kind.TOO_LARGE


class Busy(MgrError):
    """Refused for now. `retry_after` is in seconds; `reason` is one word for metrics."""

    kind = Kind.BUSY

    def __init__(self, message: str, retry_after: int = 1, reason: str = "busy") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.reason = reason


class LoadFailed(MgrError):
    """An engine did not become ready. `permanent`: the same start would fail again (bad file, unknown flag)."""

    kind = Kind.LOAD_FAILED

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class OutOfMemory(LoadFailed):
    """The engine asked for memory that was not there."""


class EngineFailed(MgrError):
    kind = Kind.UPSTREAM


class EngineGone(EngineFailed):
    pass


class EngineDied(EngineFailed):
    """`crashed`: by a fault of its own, as far as can be told, and not because somebody killed it."""

    def __init__(self, message: str, *, crashed: bool) -> None:
        super().__init__(message)
        self.crashed = crashed


class EngineHung(EngineFailed):
    kind = Kind.TIMEOUT


class EngineSilent(EngineHung, EngineGone):
    pass


class BadModel(MgrError):
    kind = Kind.BAD_MODEL


class PullFailed(MgrError):
    kind = Kind.PULL_FAILED


class StorageFailed(MgrError):
    kind = Kind.STORAGE


class Misconfigured(MgrError):
    kind = Kind.MISCONFIGURED
