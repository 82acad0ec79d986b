#!/usr/bin/env python3
"""A scripted engine: llama-server's command line and HTTP API, and on demand every way to misbehave.

    llama_server.py --script SCRIPT.json --model FILE --host X.sock ...

SCRIPT.json is `{"log": FILE, "default": {...}, "models": {ALIAS: {...}}}` and is read at each start. A behaviour has
the keys of `engine.behaviour.Behaviour`. Conditions are files: while the file exists, the engine waits. So a test
decides by making and removing files, never by sleeping. Everything that happens is one JSON object a line in `log`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).parents[2])
)  # mgr starts engines in a folder of its own, with no PYTHONPATH

from tests.fakes.engine import misbehaviour
from tests.fakes.engine.behaviour import Behaviour, Log
from tests.fakes.engine.commandline import parser
from tests.fakes.engine.server import Engine


async def main() -> None:
    options = parser().parse_args()
    if options.version:
        print("version: 1 (scripted)")
        return
    script = json.loads(Path(options.script).read_text(encoding="utf-8"))
    values = {**script.get("default", {}), **script.get("models", {}).get(options.alias, {})}
    behaviour = Behaviour(**values)
    log = Log(script["log"], options.alias)
    log("start", argv=sys.argv[1:], environment=sorted(os.environ), window=options.ctx_size)
    misbehaviour.at_start(behaviour, log)
    engine = Engine(behaviour, options, log)
    server = await asyncio.start_unix_server(engine.serve, options.host)
    await engine.load()
    async with server:
        await misbehaviour.when_ready(behaviour)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
