"""Typed reading of a JSON object that a stranger wrote. Whatever is wrong is one sentence with the field's full name.

In every dialect null is the same as absent, a bool is not a number, and 5.0 is an integer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from daemon.errors import InvalidRequest, NotSupported

_MAX_SHOWN = 60


class BadField(InvalidRequest):
    """The value of one field is wrong; `field` is its full name, like "messages[2].role"."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


class FieldNotSupported(NotSupported):
    """One field asks for something that is not built; `field` is its full name."""

    def __init__(self, field: str, problem: str = "is not supported; leave it out") -> None:
        super().__init__(f"{field} {problem}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one object. `path` is what stands before their names: "", "options." or "messages[2].".

    Every reader returns None for an absent field and raises BadField for a wrong value.
    """

    data: Mapping[str, Any]
    path: str = ""

    def name(self, key: str) -> str:
        return self.path + key

    def string(self, key: str) -> str | None:
        value = self.data.get(key)
        if value is not None and not isinstance(value, str):
            raise BadField(self.name(key), f"must be a string, not {shown(value)}")
        return value

    def required(self, key: str) -> str:
        """A string that must be there; it may be empty."""
        value = self.string(key)
        if value is None:
            raise BadField(self.name(key), "is required")
        return value

    def boolean(self, key: str) -> bool | None:
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise BadField(self.name(key), f"must be true or false, not {shown(value)}")
        return value

    def number(self, key: str, low: float, high: float) -> float | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not _is_number(value) or not low <= value <= high:
            raise BadField(self.name(key), f"must be a number from {low} to {high}, not {shown(value)}")
        return float(value)

    def integer(self, key: str, low: int, high: int) -> int | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not _is_number(value) or not low <= value <= high or value != int(value):
            raise BadField(self.name(key), f"must be an integer from {low} to {high}, not {shown(value)}")
        return int(value)

    def strings(self, key: str) -> tuple[str, ...] | None:
        """A string or an array of strings."""
        value = self.data.get(key)
        if value is None:
            return None
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise BadField(self.name(key), "must be a string or an array of strings")
        return tuple(items)

    def object(self, key: str) -> Self:
        """The object at `key`; empty when absent."""
        value = self.data.get(key)
        return self._object(key, {} if value is None else value)

    def objects(self, key: str) -> list[Self]:
        """The objects of the array at `key`; none when absent."""
        value = self.data.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise BadField(self.name(key), f"must be an array, not {shown(value)}")
        return [self._object(f"{key}[{index}]", item) for index, item in enumerate(value)]

    def refuse_unbuilt(self, unbuilt: Mapping[str, tuple[Any, ...]]) -> None:
        """Raises FieldNotSupported for a field of `unbuilt` with a value that is not one of those that mean "off"."""
        for key, off in unbuilt.items():
            value = self.data.get(key)
            if value is not None and not any(type(value) is type(item) and value == item for item in off):
                raise FieldNotSupported(self.name(key))

    def _object(self, key: str, value: Any) -> Self:
        if not isinstance(value, dict):
            raise BadField(self.name(key), f"must be an object, not {shown(value)}")
        return type(self)(value, f"{self.path}{key}.")


def shown(value: Any) -> str:
    """A value as an error may quote it: short, and in ASCII."""
    match value:
        case dict():
            return "an object"
        case list():
            return "an array"
        case str() if len(value) > _MAX_SHOWN:
            return json.dumps(value[:_MAX_SHOWN]) + "..."
    return json.dumps(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
