"""Make docs/page.png: the broker's page in a headless Chromium, with a topic of its own.

python tools/picture_of_page.py [OUT] [--width 1280] [--height 1500] [--dark]
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from pulsemark.testing import PulsarBroker, RawClient, SettableClock, running_broker

TOPIC = "persistent://public/default/orders"
OUT = Path(__file__).resolve().parent.parent / "docs" / "page.png"
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


def wait_for_audit(broker: PulsarBroker, messages: int) -> None:
    """Wait until the audit has counted so many messages."""
    path = f"{broker.http_url}/admin/v2/{TOPIC.replace('://', '/')}/audit?by="
    for _ in range(300):
        with urllib.request.urlopen(path, timeout=30) as answer:
            if sum(row["count"] for row in json.load(answer)["rows"]) == messages:
                return
        time.sleep(0.1)
    raise SystemExit("the audit counted too little within 30 s")


def main() -> None:
    """Start a broker, fill a topic, take the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=OUT)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--height", type=int, default=1500)
    parser.add_argument("--dark", action="store_true")
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if chromium is None:
        raise SystemExit(f"none of {', '.join(CHROMIUMS)} is on PATH")
    clock = SettableClock()
    with (
        running_broker(clock=clock, audit_enabled=True) as broker,
        tempfile.TemporaryDirectory() as profile,
    ):
        address = urlsplit(broker.service_url)
        with RawClient(address.hostname or "", address.port or 0) as client:
            client.subscribe(TOPIC, "billing")
            producer = client.create_producer(TOPIC, producer_name="shop")
            for number in range(40):
                clock.advance(by_ms=9_000 + 2_000 * (number % 7) ** 2)
                producer.send(
                    f"order {number}".encode(),
                    key=f"customer-{number % 5}",
                    publish_time_ms=clock.now_ms() - 5 - number % 9,
                )
        wait_for_audit(broker, 40)
        page = f"{broker.http_url}/#topic={TOPIC}&index=20"
        command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", "--virtual-time-budget=10000"]
        command += [f"--window-size={options.width},{options.height}"]
        command += ["--blink-settings=preferredColorScheme=0"] if options.dark else []
        command += [f"--screenshot={options.out.resolve()}", page]
        subprocess.run(command, check=True, timeout=90, capture_output=True)


if __name__ == "__main__":
    main()
