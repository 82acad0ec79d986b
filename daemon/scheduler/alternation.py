"""Do two clients make a model be loaded in turn, each with settings of its own? Pure."""

from dataclasses import dataclass, fields

from daemon.chat import LoadOptions

# Two loads with the same settings that lie further apart are no habit.
_HABIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Load:
    window: int
    options: LoadOptions
    when: float

    def like(self, other: "_Load") -> bool:
        return (self.window, self.options) == (other.window, other.options)

    def __str__(self) -> str:
        options = {option.name: getattr(self.options, option.name) for option in fields(LoadOptions)}
        given = {name: value for name, value in options.items() if value is not None}
        return ", ".join(f"{name} {value}" for name, value in {"num_ctx": self.window, **given}.items())


class Alternation:
    """Remembers the last loads of each model."""

    def __init__(self) -> None:
        self._loads: dict[str, list[_Load]] = {}

    def loaded(self, key: str, window: int, options: LoadOptions, now: float) -> str | None:
        """Both sets of settings, when this load is with those of the one before the last, a short time ago. `window`
        is in tokens, `now` in monotonic seconds."""
        load = _Load(window, options, now)
        loads = [*self._loads.get(key, ()), load][-3:]
        self._loads[key] = loads
        if len(loads) < 3 or loads[1].like(load) or not loads[0].like(load):
            return None
        return f"{loads[1]} and {load}" if now - loads[0].when < _HABIT_SECONDS else None
