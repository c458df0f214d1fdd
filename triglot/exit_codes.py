"""The exit codes of the command line. Every command ends with one of these.

| command | code | decided in |
|---|---|---|
| every command | ``FAILED`` for an error | ``cli.py`` |
| ``parity`` | by the verdict | ``parity/report.py: EXIT_CODES`` |
| ``bench`` | by the proofs, the timed cases and the regressions | ``commands/bench.py`` |
| ``audit`` | ``FOUND`` if a bug was not caught, or correct code raised an alarm | ``commands/audit.py`` |
| ``train`` | ``INTERRUPTED`` if Ctrl-C stopped it before the last step | ``commands/train.py`` |
"""

OK = 0  # the command did its work and found nothing wrong
FOUND = 1  # it ran, and found a divergence, a regression or a bug that was not caught
FAILED = 2  # it could not run, or nothing could be judged
INTERRUPTED = 130  # Ctrl-C or SIGTERM; by convention 128 + SIGINT
