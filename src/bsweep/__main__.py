"""`python -m bsweep` is the command."""

from bsweep.cli.main import main

if __name__ == "__main__":
    main()
