"""The page in a real browser: partitions, audit, Kafka's topics, narrow windows, the keyboard."""

from __future__ import annotations

import urllib.request

import pytest

from pulsemark.testing import RawClient, running_broker
from tests.broker.http.conftest import Browser

TOPIC = "persistent://public/default/orders"
WIDTHS = (320, 360, 768)

#: Stands for a broker whose audit misses three indexes in the second of two buckets.
MISSING = """
const real = window.fetch;
window.fetch = async (path, options) => {
  const answer = await real(path, options);
  if (!String(path).includes("/audit")) return answer;
  const found = await answer.json(), row = found.rows[0];
  const end = row.bucket_end_ms;
  const next = { ...row, bucket_start_ms: end, bucket_end_ms: end + 60000,
                 count: 7, min_index: 20, max_index: 29, missing: 3 };
  return new Response(JSON.stringify({ ...found, rows: [row, next] }));
};
"""


@pytest.fixture(scope="module")
def served():
    """A broker with an audit, a topic of 40 messages, and one with three partitions."""
    with running_broker(audit_enabled=True) as broker:
        route = f"{broker.http_url}/admin/v2/persistent/public/default/parts/partitions"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(route, data=b"3", headers=headers, method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        with RawClient.from_url(broker.service_url) as client:
            client.subscribe(
                TOPIC, "a-subscription-with-a-name-that-is-longer-than-a-phone-is-wide"
            )
            producer = client.create_producer(TOPIC, producer_name="shop")
            for number in range(40):
                producer.send(b"order %d" % number, key="k" * 150)
            for number in range(2):
                partition = f"persistent://public/default/parts-partition-{number}"
                client.create_producer(partition).send(b"part")
        yield broker


def settled(browser: Browser) -> None:
    """Wait until the timeline and the audit are shown."""
    browser.wait_for("document.querySelector('#timeline svg')")
    browser.wait_for("document.querySelector('#audit').innerText")


def test_a_partitioned_topic_leads_to_its_partitions(served, browser: Browser) -> None:
    """It is one row of the list, has no timeline of its own, and its partitions have one."""
    browser.open(f"{served.http_url}/#topic=parts")
    browser.wait_for("!document.getElementById('partitioned').hidden")
    rows = browser.evaluate(
        "[...document.querySelectorAll('#topics tbody tr')].map(r => r.innerText)"
    )
    assert len(rows) == 2
    assert "persistent://public/default/parts 3 partitions" in rows[1]
    assert browser.evaluate("document.getElementById('log').hidden")
    assert "2 received" in browser.text("#facts")
    names = browser.text("#partitions").split()
    assert names == [f"persistent://public/default/parts-partition-{n}" for n in range(3)]
    browser.evaluate("document.querySelector('#partitions button').click()")
    settled(browser)
    assert browser.text("#name").endswith("parts-partition-0")
    assert browser.evaluate("document.getElementById('partitioned').hidden")
    assert browser.text("#status") == ""


def test_the_audit_shows_buckets_and_what_is_missing(served, browser: Browser) -> None:
    """Each bucket is a bar; one with missing indexes is red, and named with its indexes."""
    browser.open(f"{served.http_url}/#topic={TOPIC}")
    settled(browser)
    browser.wait_for("document.querySelector('#audit svg rect')")
    assert "0 indexes missing" in browser.text("#audit")
    assert not browser.evaluate("document.querySelector('#audit table')")
    script = browser.call("Page.addScriptToEvaluateOnNewDocument", source=MISSING)["identifier"]
    try:
        browser.open("about:blank")
        browser.open(f"{served.http_url}/#topic={TOPIC}")
        browser.wait_for("document.querySelector('#audit table')")
    finally:
        browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    assert browser.evaluate("document.querySelectorAll('#audit rect.missing').length") == 1
    assert "3 indexes missing" in browser.text("#audit p")
    row = browser.text("#audit tbody tr").split("\t")
    assert [cell.strip() for cell in row[1:4]] == ["7", "20 to 29", "3"]


def test_a_broker_without_an_audit_says_so(browser: Browser) -> None:
    """The page shows how to switch it on, and everything else all the same."""
    with running_broker() as broker:
        with RawClient.from_url(broker.service_url) as client:
            client.create_producer(TOPIC).send(b"x")
        browser.open(f"{broker.http_url}/#topic={TOPIC}")
        settled(browser)
        assert "--audit" in browser.text("#audit")
        assert browser.text("#status") == ""


def test_a_kafka_topic_is_decoded(browser: Browser) -> None:
    """Keys, headers, values and offsets of a record set are shown, whatever compresses it."""
    kafka = pytest.importorskip("kafka")
    with running_broker(kafka_port=0) as broker:
        producer = kafka.KafkaProducer(
            bootstrap_servers=broker.kafka_url, compression_type="gzip", linger_ms=200
        )
        sent = [
            producer.send("payments", b"<b>%d</b>" % n, key=b"key-%d" % n, headers=[("shop", b"n")])
            for n in range(4)
        ]
        for future in sent:
            future.get(30)
        producer.close()
        topic = "persistent://public/default/payments-partition-0"
        browser.open(f"{broker.http_url}/#topic={topic}&index=2")
        browser.wait_for("document.querySelector('#entries tr.found')")
        found = browser.text("#entries tr.found")
        assert "Kafka record set, magic 2" in found
        for shown in ("offset 2", "key key-2", "shop = n", "<b>2</b>"):
            assert shown in found
        assert not browser.evaluate("document.querySelector('#entries .bad')")


@pytest.mark.parametrize("width", WIDTHS)
def test_narrow_windows_need_no_scrolling_to_the_side(served, browser: Browser, width: int) -> None:
    """Neither long names nor long values make the page wider than a phone."""
    browser.open(f"{served.http_url}/#topic={TOPIC}&index=20", width=width)
    browser.wait_for("document.querySelector('#entries tr.found')")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    too_wide = browser.evaluate(
        "[...document.querySelectorAll('section *')].filter(e => !e.closest('svg') && "
        f"e.getBoundingClientRect().right > {width}).map(e => e.tagName + '#' + e.id)"
    )
    assert too_wide == []


def test_the_keyboard_is_enough(served, browser: Browser) -> None:
    """Keys lead to the fields, Enter searches, Tab reaches buttons, Escape leaves a field."""
    browser.open(f"{served.http_url}/")
    browser.wait_for("document.querySelector('#topics table')")
    focused = "document.activeElement.id"
    browser.press("/")
    assert browser.evaluate(focused) == "topic"
    browser.press("i")  # in a field it is a letter
    assert browser.evaluate("document.getElementById('topic').value") == "i"
    browser.evaluate("document.getElementById('topic').value = 'orders'")
    browser.press("Enter")
    settled(browser)
    browser.press("Escape")
    browser.press("i")
    assert browser.evaluate(focused) == "index"
    for digit in "25":
        browser.press(digit)
    browser.press("Enter")
    browser.wait_for("document.querySelector('#entries tr.found')")
    assert "order 25" in browser.text("#entries tr.found")
    browser.press("Escape")
    browser.press("t")
    assert browser.evaluate(focused) == "time"
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.innerText") == "Find by time"


def test_entries_can_be_turned_over(served, browser: Browser) -> None:
    """The buttons show the ten entries before the first one and after the last one."""
    browser.open(f"{served.http_url}/#topic={TOPIC}&index=20")
    browser.wait_for("document.querySelector('#entries tr.found')")
    browser.evaluate("document.getElementById('later').click()")
    browser.wait_for("document.querySelector('#entries').innerText.includes('order 35')")
    assert "order 24" not in browser.text("#entries")
    browser.evaluate("document.getElementById('earlier').click()")
    browser.wait_for("document.querySelector('#entries').innerText.includes('order 17')")
    assert "order 28" not in browser.text("#entries")
