"""``python -m triglot`` is the command ``triglot``."""

from triglot.cli import main

if __name__ == "__main__":
    main()
