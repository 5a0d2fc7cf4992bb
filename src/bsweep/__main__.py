"""The module that `python -m bsweep` runs: it runs the command `bsweep`."""

from bsweep.cli.main import main

if __name__ == "__main__":
    main()
