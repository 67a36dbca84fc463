"""What all tests start from."""

import signal

from hypothesis import settings

# A shell that starts something in the background lets it ignore Ctrl-C, and so all that it starts: the tests of what
# Ctrl-C does would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test is timed: on a busy machine an example takes as long as it takes.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
