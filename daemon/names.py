"""Names of models, and the only way from a name to a path.

Grammar `[scheme://][host/][namespace/]model[:tag]` with the defaults registry.ollama.ai, library and latest.
Source: Ollama's documentation and its type for model names. A part starts with a letter, a digit or `_`; then
also `-`, and `.` except in a namespace, and `:` in a host. A host has 1-350 characters, other parts 1-80. So
neither an empty part, nor `..`, nor a separator can occur in a path made of parts.
"""

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from daemon.errors import InvalidRequest

DEFAULT_HOST = "registry.ollama.ai"
DEFAULT_NAMESPACE = "library"
DEFAULT_TAG = "latest"

_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-.:]{0,349}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]{0,79}")
_MODEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-.]{0,79}")
_TAG = _MODEL
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")


class BadName(InvalidRequest):
    """The text is not a model's name."""

    def __init__(self, text: str) -> None:
        super().__init__(f"invalid model name {_shown(text)}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:100] + "...")


@dataclass(frozen=True, slots=True)
class ModelName:
    """A validated name. Parts keep the case they were written in; compare with `key`."""

    model: str
    tag: str = DEFAULT_TAG
    namespace: str = DEFAULT_NAMESPACE
    host: str = DEFAULT_HOST

    def __post_init__(self) -> None:
        for pattern, part in (
            (_HOST, self.host),
            (_NAMESPACE, self.namespace),
            (_MODEL, self.model),
            (_TAG, self.tag),
        ):
            if pattern.fullmatch(part) is None:
                raise BadName(part)

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """The name that `text` writes. Raises BadName.

        >>> str(ModelName.parse("smollm2"))
        'smollm2:latest'
        """
        scheme = _SCHEME.match(text)
        rest = text[scheme.end() :] if scheme else text
        head, colon, tag = rest.rpartition(":")
        if not colon or "/" in tag:
            head, colon, tag = rest, "", DEFAULT_TAG
        parts = head.split("/")
        if len(parts) > 3:
            raise BadName(text)
        *front, model = parts
        namespace = front[-1] if front else DEFAULT_NAMESPACE
        host = front[0] if len(front) == 2 else DEFAULT_HOST
        try:
            return cls(model, tag, namespace, host)
        except BadName:
            raise BadName(text) from None

    def __str__(self) -> str:
        """The shortest form that parses to the same name; the tag is always shown."""
        text = f"{self.model}:{self.tag}"
        if self.host != DEFAULT_HOST:
            return f"{self.host}/{self.namespace}/{text}"
        return text if self.namespace == DEFAULT_NAMESPACE else f"{self.namespace}/{text}"

    @property
    def full(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def key(self) -> str:
        """Equal for names that mean the same model."""
        return self.full.lower()

    @property
    def path(self) -> PurePosixPath:
        """Relative path of its manifest below `manifests/`."""
        return PurePosixPath(self.host, self.namespace, self.model, self.tag)

    def with_tag(self, tag: str) -> "ModelName":
        return replace(self, tag=tag)
