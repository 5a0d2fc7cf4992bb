"""A program that runs horovodrun with bsweep's ssh options in place of Horovod's.

`python -m bsweep.launch.horovodrun_command OPTIONS ARGUMENTS...` runs it. Horovod 0.28.1 has no
option for how it starts ssh. It would accept a changed host key, and wait for hours after a network
link is cut. Of an option given twice, ssh uses the first value, so Horovod's own must go.
"""

from __future__ import annotations

import sys


def main() -> None:
    from horovod.runner import launch
    from horovod.runner.util import remote

    remote.SSH_COMMAND_PREFIX = f"ssh {sys.argv.pop(1)}"
    launch.run_commandline()


if __name__ == "__main__":  # horovodrun's helper processes import this module, too
    main()
