"""`python -m bsweep.launch.horovodrun_command OPTIONS ARGUMENTS...`: the horovodrun command, whose
ssh gives up a host that is silent.

Horovod 0.28.1 has no option for what its ssh is started with, and would wait for hours behind a cut
link.
"""

from __future__ import annotations

import sys


def main() -> None:
    from horovod.runner import launch
    from horovod.runner.util import remote

    remote.SSH_COMMAND_PREFIX += f" {sys.argv.pop(1)}"
    launch.run_commandline()


if __name__ == "__main__":  # its helpers import this module too
    main()
