"""What the engine answers as a whole: a status and a JSON object, errors with llama-server's own words."""

import asyncio
import json
from typing import Any

Reply = tuple[int, dict[str, Any] | list[Any]]


def not_supported(message: str) -> dict[str, Any]:
    return {"code": 501, "type": "not_supported_error", "message": message}


def refusal(error: dict[str, Any]) -> Reply:
    return error["code"], {"error": error}


def too_long(size: int, window: int) -> dict[str, Any]:
    return {
        "code": 400,
        "type": "exceed_context_size_error",
        "message": f"request ({size} tokens) exceeds the available context size ({window} tokens)",
        "n_prompt_tokens": size,
        "n_ctx": window,
    }


async def respond(writer: asyncio.StreamWriter, status: int, value: dict[str, Any] | list[Any]) -> None:
    body = json.dumps(value).encode()
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n".encode()
        + body
    )
    await writer.drain()
