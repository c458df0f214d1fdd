"""The exit codes of the command line. Every command ends with one of these."""

OK = 0  # the command did its work and found nothing wrong
FOUND = 1  # it ran, and found a divergence or a regression
FAILED = 2  # it could not run, or nothing could be judged
INTERRUPTED = 130  # Ctrl-C or SIGTERM; by convention 128 + SIGINT
