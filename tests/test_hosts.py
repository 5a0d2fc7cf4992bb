"""Workers on two hosts: network namespaces with an sshd, a name and an interface of their own, joined by a cable."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import TINY, bsweep

HOSTS = {"h1": "10.213.7.1", "h2": "10.213.7.2"}
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")


def sh(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def namespace(host: str) -> str:
    return f"bsweep-{host}"


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Path]:
    """The ssh identity that opens both hosts."""
    if os.geteuid() or not SSHD or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs root, iproute2 and an sshd")
    key = tmp_path / "key"
    sh("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    servers = []
    try:
        for host in HOSTS:
            sh("ip", "netns", "add", namespace(host))
        ends = [end for host in HOSTS for end in ("netns", namespace(host))]
        sh("ip", "link", "add", "eth0", *ends[:2], "type", "veth", "peer", "name", "eth0", *ends[2:])
        for host, address in HOSTS.items():
            sh("ip", "-n", namespace(host), "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                sh("ip", "-n", namespace(host), "link", "set", device, "up")
            etc = Path("/etc/netns", namespace(host))
            etc.mkdir(parents=True)
            names = "".join(f"{a} {h}\n" for h, a in HOSTS.items())
            (etc / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            servers.append(start_sshd(host, key, tmp_path))
        yield key
    finally:
        for server in servers:
            server.terminate()
            server.wait()
        for host in HOSTS:
            subprocess.run(["ip", "netns", "del", namespace(host)], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns", namespace(host)), ignore_errors=True)


def on(host: str) -> tuple[str, ...]:
    """What puts a command on a host."""
    named = ("unshare", "-u", "sh", "-c", f'hostname {host}; exec "$@"', "sh")
    return ("ip", "netns", "exec", namespace(host), *named)


def start_sshd(host: str, key: Path, folder: Path) -> subprocess.Popen[bytes]:
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {
        "HostKey": key,
        "AuthorizedKeysFile": f"{key}.pub",
        "StrictModes": "no",
        "PidFile": "none",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "ListenAddress": HOSTS[host],
    }
    settings = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return subprocess.Popen(
        [*on(host), str(SSHD), "-D", "-f", "/dev/null", "-E", str(folder / f"{host}.log"), *settings]
    )


def test_a_run_over_two_hosts(two_hosts: Path, tmp_path: Path) -> None:
    arguments = (
        "local_batch=8",
        "num_workers=2",
        "launch.hosts='h1:1,h2:1'",
        f"launch.ssh_identity_file={two_hosts}",
        "launch.network_interface=eth0",
        *TINY,
        "model=tiny_cnn",
        "epochs=1",
        "study=s",
    )
    result = bsweep("run", *arguments, cwd=tmp_path, prefix=on("h1"))
    assert result.returncode == 0, result.stderr
    (summary,) = (tmp_path / "results/s").glob("*/summary.json")
    assert json.loads(summary.read_text())["status"] == "completed"
    assert json.loads((summary.parent / "meta.json").read_text())["hosts"] == "h1:1,h2:1"
    assert "Accepted publickey" in (tmp_path / "h2.log").read_text(), "the other worker was started over ssh"
