"""What holds for every test."""

import signal

# A shell without job control starts its background jobs with SIGINT ignored, and every child would inherit that:
# the tests of Ctrl-C could not press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
