"""``python -m triglot`` runs the command ``triglot``."""

from triglot.cli import main

if __name__ == "__main__":
    main()
