"""A pull that is killed with SIGKILL half way, and again."""

import asyncio
import sys
from contextlib import closing
from pathlib import Path

from daemon.store.models import Store
from tests.fakes.gguf_files import gguf
from tests.fakes.hub import FakeHub, Pause

CHILD = """
import asyncio, sys
from contextlib import aclosing, closing
from pathlib import Path
from daemon.pull.puller import Puller
from daemon.store.models import Store

async def main():
    with closing(Store(Path(sys.argv[1])).open(lock=True)) as store:
        async with aclosing(Puller(store, sys.argv[2]).pull("hf.co/user/repo")) as lines:
            async for line in lines:
                print(line.status, line.completed or 0, flush=True)

asyncio.run(main())
"""

MODEL = gguf({"tokenizer.ggml.tokens": [f"token{n}" for n in range(400_000)]})


async def spawn(root: Path, endpoint: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(root), endpoint, stdout=asyncio.subprocess.PIPE
    )


async def test_a_killed_pull_leaves_no_blob_and_the_same_pull_succeeds(tmp_path: Path) -> None:
    root = tmp_path / "store"
    async with FakeHub() as hub:
        digest = hub.add("user/repo", "model-Q4_K_M.gguf", MODEL)
        pause = Pause()
        hub.script(pause)

        first = await spawn(root, hub.endpoint)
        assert first.stdout is not None
        await pause.reached.wait()
        while (
            b"pulling " + digest[:12].encode() not in (line := await first.stdout.readline())
            or b" 0\n" in line
        ):
            assert line, "the pull ended early"
        first.kill()
        await first.communicate()
        left = [path.name for path in (root / "blobs").iterdir()]
        assert len(left) == 1
        assert not left[0].startswith("sha256-")
        assert list((root / "manifests").iterdir()) == []

        second = await spawn(root, hub.endpoint)
        output, _ = await second.communicate()
        assert output.splitlines()[-1] == b"success 0"
        assert second.returncode == 0

    with closing(Store(root).open(lock=True)) as store:
        (model,) = store.list()
        assert model.model_digest.hex == digest
        assert model.path.read_bytes() == MODEL
        assert left[0] not in [path.name for path in (root / "blobs").iterdir()]
