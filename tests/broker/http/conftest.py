"""A headless Chromium for tests of the broker's page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 30


class Browser:
    """A tab, controlled by Chromium's own protocol over two pipes: JSON, ended by zero bytes."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self.process = process
        self._to, self._back = to, back
        self._received = b""
        self._last_id = 0
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attach = {"targetId": target, "flatten": True}
        self._session = self._call("Target.attachToTarget", attach)["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command for the tab."""
        return self._call(method, parameters, self._session)

    def _call(self, method: str, parameters: Any, session: str | None = None) -> Any:
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> Any:
        while b"\0" not in self._received:
            part = os.read(self._back, 1 << 16)
            assert part, "Chromium ended"
            self._received += part
        text, _, self._received = self._received.partition(b"\0")
        return json.loads(text)

    def open(self, url: str, *, width: int = 1100) -> None:
        """Open a page in a window of that width."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Wait until an expression is true."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            with suppress(AssertionError):  # elements that are not there yet
                value = self.evaluate(f"!!({expression})")
                if value:
                    return value
            if time.monotonic() > deadline_s:
                text = self.evaluate("document.body.innerText")
                pytest.fail(f"never true: {expression}\n{text}")
            time.sleep(0.02)

    def text(self, element: str = "body") -> str:
        """What the page shows in an element."""
        return str(self.evaluate(f"document.querySelector({element!r}).innerText"))

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        code = {"windowsVirtualKeyCode": codes[key]} if key in codes else {}
        if key == "Enter":
            text = {"text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One Chromium for a module's tests; they are skipped where there is none."""
    program = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if program is None:
        pytest.skip(f"none of {', '.join(CHROMIUMS)} is on PATH")
    profile = tmp_path_factory.mktemp("chromium")
    (read_there, to), (back, write_there) = os.pipe(), os.pipe()
    # The protocol is spoken over the file descriptors 3 and 4.
    shell = f'exec "$0" "$@" 3<&{read_there} 4>&{write_there}'
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    command = ["bash", "-c", shell, program, *options, f"--user-data-dir={Path(profile)}"]
    with subprocess.Popen(
        command, pass_fds=(read_there, write_there), stderr=subprocess.DEVNULL
    ) as process:
        os.close(read_there)
        os.close(write_there)
        try:
            yield Browser(process, to, back)
        finally:
            os.close(to)
            os.close(back)
            process.kill()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """The tab, with an empty page."""
    chromium.open("about:blank")
    return chromium
