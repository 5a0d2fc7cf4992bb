"""Hosts whose ssh keys are unknown, known or changed, and the options that ssh gets."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bsweep.config.launch import SshConfig
from bsweep.launch import ssh
from tests.support.running import TINY, captured, compose, exits, forks, on

pytestmark = pytest.mark.full


def test_a_changed_host_key_is_refused_until_the_user_accepts_it(
    up: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    """The keys that scripts/hosts.sh tells ssh are left out: ssh keeps what it sees in `known`.
    Horovod's own ssh has the same options as bsweep's.
    """
    known, other = tmp_path / "known", tmp_path / "other"
    options = [f"UserKnownHostsFile={known}", "GlobalKnownHostsFile=/dev/null"]
    keys = [f"{key}={value}" for key, value in up("2").items()]
    point = (*keys, *TINY, "local_batch=8", "model=tiny_cnn", "epochs=1", "study=s")

    def typed(
        code: int, *words: str, more: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        given = f"launch.ssh_options=[{','.join([*options, *more])}]"
        return exits(code, *words, *point, given, cwd=tmp_path, prefix=on("h1"))

    typed(0, "run")
    assert known.read_text().startswith("h2 ssh-ed25519 "), "a key that was unknown is remembered"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    known.write_text(f"h2 {other.with_suffix('.pub').read_text()}")
    changed = typed(2, "run", "seed=1")
    assert f"Host key for h2 has changed (`ssh-keygen -f {known} -R h2`" in changed.stderr
    assert "launch.ssh_options=[StrictHostKeyChecking=no]" in changed.stderr
    (to_mend,) = json.loads(typed(1, "doctor", "--json").stdout)["to_mend"]
    assert f"`ssh-keygen -f {known} -R h2`" in to_mend
    typed(0, "run", "seed=1", more=("StrictHostKeyChecking=no",))
    hosts = ("num_workers=2", "local_batch=8", "launch.hosts='h1:1,h2:1'")
    card = compose(*hosts, f"launch.ssh_options={json.dumps(options)}").launch
    assert isinstance(card, SshConfig)
    words = shlex.join(ssh.options(card))
    (identity,) = [key.partition("=")[2] for key in keys if "identity" in key]
    horovodrun = ("bsweep.launch.horovodrun_command", words, "-np", "2", "-H", "h1:1,h2:1")
    start = (*on("h1"), forks().python, "-m", *horovodrun)
    alone = captured([*start, "--ssh-identity-file", identity, "true"], cwd=tmp_path)
    assert alone.returncode != 0
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in alone.stdout + alone.stderr
