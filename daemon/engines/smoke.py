"""Does an engine work? It is started as mgr starts it, answers a short prompt with a tiny model, and is stopped."""

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from daemon.chat import CompletionRequest, Sampling
from daemon.engines import tiny
from daemon.errors import LoadFailed, MgrError
from daemon.runner.endpoint import RunDirectory
from daemon.runner.engine import EngineFinder
from daemon.runner.launch import Launch
from daemon.runner.runner import Runner

STALL_SECONDS = 60.0
ANSWER_SECONDS = 60.0
_TOKENS = 8
_REQUEST = CompletionRequest(
    model="test", prompt="Hello", sampling=Sampling(max_tokens=_TOKENS, temperature=0.0)
)


class SmokeFailed(MgrError):
    """The engine does not work here; one sentence, and the engine's last lines where it said something."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the engine said: its version, its devices besides the CPU (None where it does not tell them), and how many
    tokens it answered with."""

    version: str
    devices: tuple[str, ...] | None
    tokens: int


async def smoke_test(program: Path, scratch: Path) -> Report:
    """Tests the llama-server `program`. `scratch` is a folder for the model, which is removed again.

    Raises SmokeFailed; however it ends, no process is left. Call it in the main thread.
    """
    return await smoke_test_of(EngineFinder("built", [("the new engine", program)], "", scratch), scratch)


async def smoke_test_of(finder: EngineFinder, scratch: Path) -> Report:
    """Tests the engine in the first place where `finder` looks; as `smoke_test`."""
    model = scratch / "tiny.gguf"
    with ExitStack() as resources:
        try:
            directory = RunDirectory.open(None)  # not `scratch`: the path of a socket must be short
            resources.callback(directory.close)
            resources.callback(model.unlink, missing_ok=True)
            tiny.write(model)
            finding = (await finder.survey())[0]
            if (engine := finding.engine) is None:
                raise SmokeFailed(finding.reason)
            launch = Launch(model=model, alias="test", window=tiny.WINDOW, slots=1)
            tokens = await _answered(Runner(launch, finder, directory, STALL_SECONDS, lambda error: None))
        except TimeoutError:
            raise SmokeFailed(f"the engine did not answer within {ANSWER_SECONDS:g} s") from None
        except OSError as error:
            raise SmokeFailed(f"the model for its test cannot be written: {error.strerror}") from None
        except MgrError as error:
            raise SmokeFailed(error.message) from None
    return Report(engine.version, engine.devices, tokens)


async def _answered(runner: Runner) -> int:
    """The number of tokens of an answer. Raises LoadFailed, EngineFailed and TimeoutError."""
    await runner.ensure_ready()
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            done = await runner.answer(_REQUEST, lambda pieces: None)
    finally:
        await runner.stop("its test is over")
    if done.usage.completion == 0:
        raise LoadFailed("the engine answered a prompt with no token at all")
    return done.usage.completion
