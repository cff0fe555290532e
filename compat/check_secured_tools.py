r"""Run pulsar-admin, pulsar-client and pulsar-perf against a broker that asks for credentials.

    python compat/check_secured_tools.py --pulsar-home ~/apache-pulsar-4.0.8

Starts a broker with tokens, passwords and client certificates, with permissions and with TLS, as
docs/security.md says it, and uses each way to authenticate with each program over TLS. Then each
program tries a wrong token, and a good one of a role without permission. Prints a line for each
run; exit code 1 if one succeeded that must fail, or the other way round.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pulsemark.broker import BrokerConfig, BrokerThread

sys.path.insert(0, str(Path(__file__).parent))
from differential.pulsar_shell import environment

sys.path.append(str(Path(__file__).resolve().parent.parent))
from tests.support.certificates import Certificates
from tests.support.secured import SECRET, security, token_of

LIMIT_S = 900.0
PLUGINS = "org.apache.pulsar.client.impl.auth.Authentication"
TOPIC = "persistent://public/default/tools"


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials as options of the programs."""

    name: str
    plugin: str
    parameters: str


@dataclass(frozen=True, slots=True)
class Program:
    """A command of the distribution, with and without what it must print to have succeeded."""

    name: str
    arguments: tuple[str, ...]
    says: str = ""


def main() -> int:
    """Run all programs with all credentials."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pulsar-home", type=Path, required=True)
    parser.add_argument("--only", help="run only this program")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder)
        make_certificates(files)
        digest = base64.b64encode(hashlib.sha1(b"secret").digest()).decode()
        (files / ".htpasswd").write_text(f"ann:{{SHA}}{digest}\n")
        with BrokerThread(secured_config(files)) as broker:
            failures = 0
            for login, is_good in logins(files):
                for program in programs(broker, files):
                    if args.only not in (None, program.name):
                        continue
                    succeeded = run(args.pulsar_home, files, login, program)
                    outcome = "succeeded" if succeeded else "failed"
                    fits = succeeded is is_good
                    failures += not fits
                    note = "" if fits else "  <- WRONG"
                    print(f"{login.name:28} {program.name:16} {outcome}{note}", flush=True)
    print(f"{failures} runs did not end as they must")
    return 1 if failures else 0


def secured_config(files: Path) -> BrokerConfig:
    """A broker with all providers; its super users are the three roles."""
    settings = security(
        authentication_providers=("token", "basic", "tls"),
        basic_auth_conf=str(files / ".htpasswd"),
        super_user_roles=("admin", "ann", "client-role"),
        tls_port=0,
        http_tls_port=0,
        tls_certificate_file=str(files / "broker.pem"),
        tls_key_file=str(files / "broker.key"),
        tls_trust_certs_file=str(files / "ca.pem"),
    )
    return BrokerConfig(data_dir=files / "data", port=0, http_port=0, security=settings)


def logins(files: Path) -> Iterator[tuple[Login, bool]]:
    """Credentials, and whether they are good and enough."""
    wrong = token_of("admin", key=bytes(len(SECRET)))
    keys = f"tlsCertFile:{files / 'client.pem'},tlsKeyFile:{files / 'client.key'}"
    password = json.dumps({"userId": "ann", "password": "secret"})
    yield Login("token", f"{PLUGINS}Token", f"token:{token_of('admin')}"), True
    yield Login("basic", f"{PLUGINS}Basic", password), True
    yield Login("tls", f"{PLUGINS}Tls", keys), True
    yield Login("token of another key", f"{PLUGINS}Token", f"token:{wrong}"), False
    yield Login("token without permission", f"{PLUGINS}Token", f"token:{token_of('bob')}"), False


def programs(broker: BrokerThread, files: Path) -> tuple[Program, ...]:
    """What is run with each login, in this order."""
    service = broker.service_url_tls.replace("127.0.0.1", "localhost")
    admin = broker.http_url_tls.replace("127.0.0.1", "localhost")
    ca = str(files / "ca.pem")
    take = ("-sp", "Earliest", "-m", "1", "-ss", "s", "-time", "300", TOPIC)
    return (
        Program(
            "pulsar-admin",
            ("--admin-url", admin, "--tls-trust-cert-path", ca, "topics", "list", "public/default"),
        ),
        Program(
            "pulsar-client",
            ("--url", service, "--tlsTrustCertsFilePath", ca, "produce", TOPIC, "-m", "hello"),
            says="1 messages successfully produced",
        ),
        Program(
            "pulsar-perf",
            ("consume", "-u", service, "--trust-cert-file", ca, *take),
            says=" 1 records received",
        ),
    )


def run(home: Path, files: Path, login: Login, program: Program) -> bool:
    """Run one program; whether it did what it was asked to do."""
    options = ["--auth-plugin", login.plugin, "--auth-params", login.parameters]
    arguments = list(program.arguments)
    # pulsar-perf has them after its command, the others before it.
    place = 1 if program.name == "pulsar-perf" else 0
    finished = subprocess.run(
        [home / "bin" / program.name, *arguments[:place], *options, *arguments[place:]],
        env=environment(files),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        check=False,
    )
    return finished.returncode == 0 and program.says in finished.stdout.decode(errors="replace")


def make_certificates(files: Path) -> None:
    """An authority, and certificates of a broker on localhost and of a client."""
    made = Certificates(files)
    made.authority("ca")
    names = "DNS:localhost,IP:127.0.0.1"
    made.issue("broker", "ca", names, subject="/CN=localhost")
    made.issue("client", "ca", names, subject="/CN=client-role")


if __name__ == "__main__":
    sys.exit(main())
