"""`python -m daemon`: the daemon without the command line's flags."""

import sys

from daemon.errors import Misconfigured
from daemon.server import EXIT_MISCONFIGURED, serve
from daemon.settings import load


def main() -> int:
    try:
        settings = load()
    except Misconfigured as error:
        print(f"Error: {error.message}", file=sys.stderr)  # noqa: T201
        return EXIT_MISCONFIGURED
    return serve(settings)


if __name__ == "__main__":
    sys.exit(main())
