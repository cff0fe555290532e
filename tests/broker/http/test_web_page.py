"""The broker's page: one small file, allowed to load nothing, shown by a real browser."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture
def page(broker):
    """The headers and the text of the page."""
    with urllib.request.urlopen(f"{broker.http_url}/", timeout=30) as answer:
        assert answer.status == 200
        return answer.headers, answer.read().decode()


def test_the_page_is_small_and_complete(page):
    """HTML below 100 KB that names no other address."""
    headers, text = page
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert len(text.encode()) < 100_000
    addresses = set(re.findall(r"https?://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert re.findall(r"(?:src|href)=\"([^\"]*)\"", text) == ["data:,"]


def test_the_page_allows_only_its_own_script(page):
    """The policy has the hashes of the script and the style; data never becomes HTML."""
    headers, text = page
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for element in ("script", "style"):
        inline = re.findall(rf"<{element}>(.*?)</{element}>", text, re.DOTALL)[0]
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text)
    assert " style=" not in text
    assert "localStorage" not in text


def test_a_foreign_host_gets_no_page(broker):
    """The check of the Host applies to the page as to other routes."""
    request = urllib.request.Request(f"{broker.http_url}/", headers={"Host": "evil.example.com"})
    with pytest.raises(urllib.error.HTTPError, match="421"):
        urllib.request.urlopen(request, timeout=30)


def dump(address: str, profile: Path) -> str:
    """The page's DOM after its script has run in a headless Chromium."""
    chromium = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if chromium is None:
        pytest.skip(f"none of {', '.join(CHROMIUMS)} is on PATH")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=10000", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout


def test_a_browser_shows_a_topic_and_a_search(broker, raw, topic, tmp_path):
    """Topic, subscription, timeline and the entry found; what looks like HTML is shown as text."""
    raw.subscribe(topic, "billing")
    producer = raw.create_producer(topic, producer_name="p")
    for number in range(5):
        producer.send(b"<img src=x onerror=alert(%d)>" % number, key="<b>key</b>")
    shown = dump(f"{broker.http_url}/#topic={topic}&index=3", tmp_path)
    assert f'class="link">{topic}</button>' in shown
    assert "billing" in shown
    assert "<polyline" in shown
    assert re.search(r"Found at position \d+:3\.", shown)
    row = re.findall(r'<tr class="found">.*?</tr>', shown)[0]
    assert "time, index" in row
    assert "index = 3" not in row
    assert "broker_timestamp" not in row
    assert "&lt;img src=x onerror=alert(3)&gt;" in row
    assert "<b>key" not in shown
    assert re.search(r'<span id="status"[^>]*></span>', shown)
