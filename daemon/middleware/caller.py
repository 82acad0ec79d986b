"""Who asks, and whether somebody waits for the answer: what the scheduler is told of a client. Pure.

A client is its API key where keys are asked for, since only a key that was accepted cannot be made up at will; else
the address of its connection. What a proxy says of the one behind it is not believed, as anybody can say it: clients
behind a proxy share their turns unless they have keys.

Batch is what nobody sits and waits for: `X-Priority: batch`, or `Priority: u=7`, the urgency that RFC 9218 keeps for
background tasks. The others are not: browsers send them by themselves, for what a person looks at.
"""

import re
from ipaddress import IPv6Address, ip_address

from starlette.datastructures import Headers
from starlette.types import Scope

_KEY_DIGITS = 12  # enough to tell keys apart in `ps` and metrics, too few to be of use to anybody else

# RFC 9218's parameter `u` in a dictionary of RFC 9651, where the last of equal names counts.
_URGENCY = re.compile(r"(?:^|,)[ \t]*u=(-?[0-9]+)[ \t]*(?=[,;]|$)")
_BACKGROUND = "7"


def name_of(scope: Scope, key_digest: bytes | None) -> str:
    """Equal for requests of one client. `key_digest` is the SHA-256 of the key that was accepted, if one was."""
    if key_digest is not None:
        return f"key {key_digest.hex()[:_KEY_DIGITS]}"
    server, client = scope.get("server"), scope.get("client")
    if client is None or not client[0] or (server is not None and server[1] is None):
        return "local socket"
    return _address(client[0])


def wants_batch(headers: Headers) -> bool:
    if any(value.strip().lower() == "batch" for value in headers.getlist("x-priority")):
        return True
    urgencies = _URGENCY.findall(", ".join(headers.getlist("priority")))
    return bool(urgencies) and urgencies[-1] == _BACKGROUND


def _address(text: str) -> str:
    """One client has one address, whether it came to an IPv4 socket or to one of both kinds."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
