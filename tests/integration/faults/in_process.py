"""Runners in the test's own process, each with a scripted engine."""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.chat import ChatRequest, Done, Message, Piece, Text
from daemon.errors import MgrError
from daemon.runner.endpoint import RunDirectory
from daemon.runner.engine import EngineFinder
from daemon.runner.launch import Launch
from daemon.runner.runner import Runner
from tests.fakes.daemon import ENGINE

REQUEST = ChatRequest(model="a", messages=(Message("user", (Text("hi"),)),))


@dataclass
class Runners:
    """Makes runners. `exits` is what they told of engines that died."""

    folder: Path
    directory: RunDirectory
    exits: list[MgrError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._engine = self.folder / "engine.sh"
        script = self.folder / "script.json"
        self._engine.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -S "{ENGINE}" --script "{script}" "$@"\n'
        )
        self._engine.chmod(0o755)
        self._finder = EngineFinder(str(self._engine), [], os.defpath, self.directory.path)
        self.script()

    def script(self, **behaviour: Any) -> None:
        script = {"log": str(self.folder / "events"), "default": behaviour}
        (self.folder / "script.json").write_text(json.dumps(script))

    def new(self) -> Runner:
        launch = Launch(model=self.folder / "m.gguf", alias="a", window=1024, slots=1)
        return Runner(launch, self._finder, self.directory, 60, self.exits.append)


async def said(runner: Runner) -> str:
    """The text of one answer."""
    pieces: list[Piece] = []
    done = await runner.answer(REQUEST, pieces.extend)
    assert isinstance(done, Done)
    return "".join(getattr(piece, "text", "") for piece in pieces)
