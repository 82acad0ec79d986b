"""llama-quantize, which a build of mgr's has beside llama-server: it writes a model with smaller numbers."""

import os
from pathlib import Path

from daemon.errors import BadModel, InvalidRequest
from daemon.runner.engine import Engine
from daemon.runner.launch import environment
from daemon.runner.output import quote
from daemon.runner.process import output_of

PROGRAM = "llama-quantize"

_SECONDS = 4 * 3600


def tool_of(engine: Engine) -> Path:
    """Raises InvalidRequest where the engine came without it."""
    path = Path(engine.command[-1]).with_name(PROGRAM)
    if not path.is_file():
        raise InvalidRequest(
            f"this engine ({engine.kind}) has no {PROGRAM}, so quantize is not possible; `mgr engine build` makes an "
            "engine that has it"
        )
    return path


async def quantize(tool: Path, source: Path, target: Path, file_type: str) -> None:
    """Writes `source` to `target` as `file_type`, like "Q4_K_M"; of the CPUs it uses all but one.

    It runs in a process of its own, which ends with the caller. Raises BadModel with what the program said last.
    """
    threads = str(max((os.cpu_count() or 1) - 1, 1))
    command = [str(tool), str(source), str(target), file_type, threads]
    clean = environment(os.environ, "", target.parent)
    try:
        status, lines = await output_of(command, clean, target.parent, _SECONDS)
    except (OSError, TimeoutError) as error:
        raise BadModel(f"{PROGRAM} could not do its work: {type(error).__name__}") from error
    if status != 0:
        said = quote([line.replace(f"{target.parent}/", "") for line in lines if line.strip()], 1)
        raise BadModel(f"{PROGRAM} ended with status {status}" + (f": {said}" if said else ""))
