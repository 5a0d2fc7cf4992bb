"""A program that runs horovodrun with extra ssh options, by which ssh ends its connection to a host
that no longer answers.

`python -m bsweep.launch.horovodrun_command OPTIONS ARGUMENTS...` runs it. Horovod 0.28.1 has no
option for how it starts ssh, and would wait for hours after a network link is cut.
"""

from __future__ import annotations

import sys


def main() -> None:
    from horovod.runner import launch
    from horovod.runner.util import remote

    remote.SSH_COMMAND_PREFIX += f" {sys.argv.pop(1)}"
    launch.run_commandline()


if __name__ == "__main__":  # horovodrun's helper processes import this module, too
    main()
