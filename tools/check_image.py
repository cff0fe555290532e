"""Build the image of deploy/Dockerfile without a container engine and a registry, and run it.

    make image-check

It needs root, debootstrap and buildah (`apt-get install debootstrap buildah`). In the place of
`python:3.13-slim` stands a Debian that has Python 3.13, made by debootstrap once and then kept. The
Dockerfile's steps run on it as they are. Then the image's program runs as the image's user, in a
network of its own: the image's health check passes, a message comes back, SIGTERM ends it in order.

It prints how large the image is, and fails if its layers together are above the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BASE = Path.home() / ".cache" / "pulsemark-image-base.tar"
IMAGE = "localhost/pulsemark"
STORAGE = '[storage]\ndriver = "overlay"\ngraphroot = "{0}/graph"\nrunroot = "{0}/run"\n'
#: How this machine reaches Python's package index is its own business.
OF_THE_MACHINE = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt")

#: In a network of its own, with the image's program in the background.
SESSION = """
set -eu
ip link set lo up
{run} {entrypoint} --kafka-port 9092 >{folder}/out 2>{folder}/err &
broker=$!
for _ in $(seq 300); do grep -q 'is ready' {folder}/out && break; sleep 0.1; done
{run} {health}
{run} id -u
{run} /venv/bin/pulsemark produce orders --message paid
{run} /venv/bin/pulsemark consume orders --peek --from earliest
kill -TERM $broker
wait $broker
"""


def main() -> int:
    """Build, measure and run; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--limit-mb", type=float, default=150, help="of the image's layers (default: 150)"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "storage.conf").write_text(STORAGE.format(folder))
        os.environ |= {
            "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf",
            "BUILDAH_ISOLATION": "chroot",
        }
        make_base(folder)
        buildah(
            "bud", "--pull-never", "--format", "docker", "-f", "deploy/Dockerfile", "-t", IMAGE, "."
        )
        try:
            size_mb = measure(folder)
            run_image(folder)
        finally:
            buildah("rm", "--all")
    return 0 if size_mb <= args.limit_mb else 1


def buildah(*arguments: str | Path) -> str:
    """Call buildah; its output. Raises CalledProcessError."""
    command = ["buildah", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def make_base(folder: Path) -> None:
    """What the Dockerfile begins with, under its name."""
    if not BASE.exists():
        tree = folder / "base"
        packages = "--include=python3-pip,python3-venv,ca-certificates"
        subprocess.run(["debootstrap", "--variant=minbase", packages, "trixie", tree], check=True)
        (tree / "usr/bin/python").symlink_to("python3")
        unused = [
            f"./{each}"
            for each in (
                "usr/share/doc",
                "usr/share/man",
                "usr/share/locale",
                "var/cache",
                "var/lib/apt",
            )
        ]
        BASE.parent.mkdir(parents=True, exist_ok=True)
        excluded = [f"--exclude={each}/*" for each in unused]
        subprocess.run(["tar", "-C", tree, *excluded, "-cf", BASE, "."], check=True)
    container = buildah("from", "scratch")
    buildah("add", container, BASE, "/")
    for path in OF_THE_MACHINE:
        if Path(path).exists():
            buildah("add", container, path, path)
    buildah("commit", "--rm", container, "localhost/python:3.13-slim")


def measure(folder: Path) -> float:
    """Print the size of all layers, also packed as registries keep them; the first, in MB."""
    facts: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", IMAGE))
    size_mb = sum(layer["size"] for layer in json.loads(facts["Manifest"])["layers"]) / 1e6
    buildah("push", "--quiet", IMAGE, f"dir:{folder}/pushed")
    pushed = json.loads((folder / "pushed/manifest.json").read_text())
    packed_mb = sum(layer["size"] for layer in pushed["layers"]) / 1e6
    print(f"{size_mb:.0f} MB, {packed_mb:.0f} MB packed")
    return float(size_mb)


def run_image(folder: Path) -> None:
    """Run the image's program and its health check. Raises CalledProcessError."""
    container = buildah("from", "--pull-never", IMAGE)
    config = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    tree, user = buildah("mount", container), config["User"]
    if int(user) == 0:
        raise SystemExit("the image runs as root")
    how, *health = config["Healthcheck"]["Test"]
    assert how == "CMD", how
    script = SESSION.format(
        run=f"chroot --userspec={user}:{user} {tree}", entrypoint=shlex.join(config["Entrypoint"]),
        health=shlex.join(health), folder=folder,
    )  # fmt: skip
    done = subprocess.run(
        ["unshare", "--net", "bash", "-c", script], capture_output=True, text=True, check=False
    )
    print(done.stdout, end="")
    if done.returncode or f"\n{user}\n" not in f"\n{done.stdout}" or "paid" not in done.stdout:
        print(
            done.stderr, (folder / "out").read_text(), (folder / "err").read_text(), file=sys.stderr
        )
        raise SystemExit("the image does not do what it should")


if __name__ == "__main__":
    raise SystemExit(main())
