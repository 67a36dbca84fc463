"""What all tests start from."""

import signal

# A shell that starts something in the background lets it ignore Ctrl-C, and so all that it starts: the tests of what
# Ctrl-C does would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
