"""A program that runs horovodrun with bsweep's ssh options in place of Horovod's, and with
rendezvous servers that listen at one address.

`python horovodrun_command.py OPTIONS ARGUMENTS...` runs it. Horovod 0.28.1 has no option for how it
starts ssh. It would accept a changed host key, and wait for hours after a network link is cut. Of
an option given twice, ssh uses the first value, so Horovod's own must go. Without this program,
Horovod's rendezvous server would listen at all network interfaces.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def listen_only_at(address: str) -> None:
    """Make the rendezvous servers that this process starts from now on listen only at `address`."""
    from horovod.runner.http import http_server
    from horovod.runner.util.network import find_port

    http_server.find_port = lambda server_at: find_port(lambda all_: server_at((address, all_[1])))


def main() -> None:
    folder = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != folder]  # its modules are in a package
    from horovod.runner import launch
    from horovod.runner.util import remote

    run = launch.gloo_run

    def run_at(settings: Any, nics: Any, env: Any, server_ip: str, command: Any) -> None:
        listen_only_at(server_ip)
        run(settings, nics, env, server_ip, command)

    launch.gloo_run = run_at
    remote.SSH_COMMAND_PREFIX = f"ssh {sys.argv.pop(1)}"
    launch.run_commandline()


if __name__ == "__main__":  # horovodrun's helper processes import this module, too
    main()
