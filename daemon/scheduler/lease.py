"""What a request holds while an engine answers it."""

from collections.abc import Callable

from daemon.chat import Request
from daemon.runner.runner import Runner

Release = Callable[["Lease"], None]


class Lease:
    """The right to ask one loaded model one thing. The model stays for as long as it is held."""

    def __init__(self, runner: Runner, request: Request | None, waited: float, release: Release) -> None:
        self.runner = runner
        self.request = request  # what the engine is asked
        self.waited = waited  # seconds until it was granted
        self._release: Release | None = release

    def release(self) -> None:
        """Gives it back; more than once does nothing."""
        release, self._release = self._release, None
        if release is not None:
            release(self)
