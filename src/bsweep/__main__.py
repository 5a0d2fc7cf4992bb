"""`python -m bsweep` is the command."""

from bsweep.cli import main

if __name__ == "__main__":
    main()
