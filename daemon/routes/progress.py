"""The answer of work that takes a while: its steps as NDJSON, or only the last of them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from daemon.framing import ndjson
from daemon.middleware import ollama
from daemon.middleware.access import to_response
from daemon.routes.streaming import Body, known, until_client_leaves

Step = Mapping[str, Any]


class ProgressResponse(Response):
    """A failure before the first step has its own status, a later one is the last line. A client that leaves closes
    `steps`."""

    def __init__(self, steps: AsyncGenerator[Step, None], *, stream: bool) -> None:
        self.status_code = 200
        self.background = None
        self._steps = steps
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(send, ollama.NDJSON)

        async def answer() -> None:
            last: Step = {}
            try:
                async with aclosing(self._steps) as steps:
                    async for last in steps:
                        if self._stream:
                            await body.write(ndjson(last))
            except Exception as error:
                if not body.started:
                    await to_response(ollama.CHAT.error(known(error)))(scope, receive, send)
                    return
                await body.write(ndjson({"error": known(error).message}))
            if self._stream:
                await body.end()
            else:
                await JSONResponse(last)(scope, receive, send)

        await until_client_leaves(answer, receive)
