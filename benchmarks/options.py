"""How a benchmark is run."""

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    """`runs` 0: as many samples as the row needs; `quick`: fewer and shorter, to see that all works; `engine` as
    MGR_ENGINE, for the rows with the real engine; `model`: a GGUF file for them, None pulls a small one."""

    runs: int = 0
    quick: bool = False
    engine: str = "auto"
    model: Path | None = None

    def count(self, needed: int) -> int:
        """Samples of a row that needs so many."""
        return self.runs or (min(needed, 2) if self.quick else needed)

    def say(self, text: str) -> None:
        """One line of progress, to stderr."""
        sys.stderr.write(f"{text}\n")
