"""What `format` of a JSON schema asks of a string, as patterns; every match is valid, not every valid string matches.

Sources: the JSON Schema specification, "Defined Formats"; RFC 3339, 4122, 5321, 1123, 3986.
"""

from collections.abc import Mapping
from typing import Final

_DATE = r"[1-9]\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_LABEL = r"[a-z]([a-z0-9]|-[a-z0-9]){0,20}"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,3}}\.[a-z]{{2,8}}"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"

PATTERNS: Final[Mapping[str, str]] = {
    name: f"^{pattern}$"
    for name, pattern in {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}T{_TIME}",
        "duration": r"P(\d{1,4}[YMWD]|T\d{1,4}[HMS])",
        "uuid": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "email": rf"[A-Za-z0-9]([A-Za-z0-9]|[._%+-][A-Za-z0-9]){{0,30}}@{_HOST}",
        "hostname": _HOST,
        "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
        "ipv6": r"([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
        "uri": rf"https?://{_HOST}(/[A-Za-z0-9._~-]{{1,30}}){{0,8}}/?",
    }.items()
}
