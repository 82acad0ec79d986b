"""What ends a command, as one sentence for the person at the terminal.

CliError
├── ApiError      the server refused; the sentence is the server's own
├── NotRunning    nothing listens on the address
└── WrongUsage    the arguments contradict each other
"""

from typing import ClassVar


class CliError(Exception):
    """Printed as `Error: <message>`."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ApiError(CliError):
    """An answer of 400 or more, or an error line inside a stream, which has the status of the stream."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotRunning(CliError):
    def __init__(self, address: object) -> None:
        super().__init__(f"mgr is not running on {address}; start it with `mgr serve`")


class WrongUsage(CliError):
    exit_code = 2
