"""Numbers as people read them; the wording is that of Ollama's command line."""

from datetime import UTC, datetime

_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "KB"))
_FOREVER_DAYS = 20 * 365


def size(count: int) -> str:
    """Bytes in decimal units.

    >>> size(98_362_432), size(1_500), size(7)
    ('98 MB', '1.5 KB', '7 B')
    """
    for unit, name in _BYTE_UNITS:
        if count >= unit:
            value = count / unit
            return f"{int(value)} {name}" if value >= 10 or value == int(value) else f"{value:.1f} {name}"
    return f"{count} B"


def parameters(count: int) -> str:
    """The number of a model's weights.

    >>> parameters(8_030_261_248), parameters(134_515_008), parameters(22_000)
    ('8.0B', '134.52M', '22K')
    """
    if count >= 1e9:
        return f"{count / 1e9:.0f}B" if count % 10**9 == 0 else f"{count / 1e9:.1f}B"
    if count >= 1e6:
        return f"{count / 1e6:.0f}M" if count % 10**6 == 0 else f"{count / 1e6:.2f}M"
    return f"{count / 1e3:.0f}K" if count >= 1e3 else str(count)


def span(seconds: float) -> str:
    """A length of time, roughly.

    >>> span(75), span(7_300), span(864_000)
    ('About a minute', '2 hours', '10 days')
    """
    minutes, hours = int(seconds / 60), round(seconds / 3600)
    days = int(seconds / 86400)
    if seconds < 1:
        return "Less than a second"
    if minutes < 1:
        return _plural(int(seconds), "second")
    if minutes < 60:
        return "About a minute" if minutes == 1 else f"{minutes} minutes"
    if hours < 48:
        return "About an hour" if hours == 1 else f"{hours} hours"
    if days < 14:
        return f"{days} days"
    if days < 60:
        return f"{days // 7} weeks"
    return f"{days // 30} months" if days < 730 else f"{days // 365} years"


def _plural(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"


def ago(timestamp: str, now: datetime) -> str:
    """When something was changed; "-" for a text that is no timestamp."""
    then = _parsed(timestamp)
    return "-" if then is None else f"{span(max((now - then).total_seconds(), 0))} ago"


def until(timestamp: str, now: datetime) -> str:
    """When a model will be unloaded. A time far off means for ever, the zero time never."""
    then = _parsed(timestamp)
    if then is None or then.year == 1:
        return "Never"
    seconds = (then - now).total_seconds()
    if seconds <= 0:
        return "Stopping..."
    return "Forever" if seconds > _FOREVER_DAYS * 86400 else f"{span(seconds)} from now"


def duration(nanoseconds: int) -> str:
    """A measured time.

    >>> duration(1_234_567_890), duration(45_600_000), duration(61_500_000_000)
    ('1.23s', '45.6ms', '1m1.5s')
    """
    seconds = nanoseconds / 1e9
    if seconds < 1:
        return f"{round(seconds * 1e3, 2):g}ms"
    if seconds < 60:
        return f"{seconds:.2f}s"
    minutes, tenths = divmod(int(seconds * 10), 600)
    return f"{minutes}m{tenths / 10:g}s"


def processor(total: int, on_gpu: int) -> str:
    """Where a loaded model's bytes lie."""
    if total <= 0 or on_gpu > total:
        return "Unknown"
    if on_gpu == 0:
        return "100% CPU"
    if on_gpu == total:
        return "100% GPU"
    cpu = round((total - on_gpu) / total * 100)
    return f"{cpu}%/{100 - cpu}% CPU/GPU"


def _parsed(timestamp: str) -> datetime | None:
    try:
        then = datetime.fromisoformat(timestamp)
    except ValueError:
        return None
    return then if then.tzinfo else then.replace(tzinfo=UTC)
