#!/usr/bin/env python3
"""Opens the report of a run in a real browser. It is an error if the page asks for anything else than itself, if the browser
reports an error, if a drawing or a table has no size, or if the page is wider than the window. Writes a picture of it.

    python3 bench/report_page.py runs/nyc-weather-1/report.html report.png

It needs Chromium (`apt install chromium`), which the variable CHROMIUM may name. `.ci/run` does the same with a Chromium of npm if
none is installed.
"""

import base64
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

SECONDS = 180
WIDTH = 1040
MEASURE = """(() => {
  const boxes = [...document.querySelectorAll("svg, table")].map((of) => of.getBoundingClientRect());
  const empty = boxes.filter((box) => box.width < 10 || box.height < 10).length;
  const width = (of) => { const range = new Range(); range.selectNodeContents(of); return range.getBoundingClientRect().width; };
  const texts = [...document.querySelectorAll("h1, h2, th, td, text")].filter((of) => of.textContent.trim());
  const unwritten = texts.filter((of) => width(of) < 1).length;
  return {drawn: boxes.length, empty, texts: texts.length, unwritten, wide: document.documentElement.scrollWidth > innerWidth};
})()"""


class Browser:
    """Chromium without a window. It takes commands of the DevTools protocol from a pipe, and writes results and events to another."""

    def __init__(self, folder: str):
        commands, self.commands = os.pipe()
        self.messages, messages = os.pipe()

        def give_pipes() -> None:
            os.dup2(commands, 3)
            os.dup2(messages, 4)

        command = [os.environ.get("CHROMIUM", "chromium"), "--headless", "--no-sandbox", "--disable-gpu",
                   f"--user-data-dir={folder}", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(command, pass_fds=(3, 4), preexec_fn=give_pipes, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(messages)
        self.last = threading.Timer(SECONDS, self.process.kill)
        self.last.start()
        self.unread, self.events, self.count, self.page = b"", [], 0, None

    def message(self) -> dict:
        while b"\0" not in self.unread:
            more = os.read(self.messages, 1 << 16)
            if not more:
                sys.exit("the browser ended, or took too long")
            self.unread += more
        first, self.unread = self.unread.split(b"\0", 1)
        return json.loads(first)

    def ask(self, method: str, **params) -> dict:
        """The result of a command. Events that come before it are kept."""
        self.count += 1
        command = {"id": self.count, "method": method, "params": params} | ({"sessionId": self.page} if self.page else {})
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while (message := self.message()).get("id") != self.count:
            self.events.append(message)
        if "result" not in message:
            sys.exit(f"{method}: {message}")
        return message["result"]

    def wait_for(self, event: str) -> None:
        while all(message["method"] != event for message in self.events):
            self.events.append(self.message())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.last.cancel()


def opened(browser: Browser, address: str) -> tuple[dict, bytes]:
    """What the page measures, and a picture of all of it."""
    target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    browser.page = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for domain in ("Page", "Network", "Runtime", "Log"):
        browser.ask(f"{domain}.enable")
    browser.ask("Emulation.setDeviceMetricsOverride", width=WIDTH, height=2000, deviceScaleFactor=1, mobile=False)
    browser.ask("Page.navigate", url=address)
    browser.wait_for("Page.loadEventFired")
    measured = browser.ask("Runtime.evaluate", expression=MEASURE, returnByValue=True)["result"]["value"]
    size = browser.ask("Page.getLayoutMetrics")["cssContentSize"]
    picture = browser.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=size | {"scale": 1})["data"]
    return measured, base64.b64decode(picture)


def main() -> None:
    page, picture = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        try:
            measured, shown = opened(browser, page.as_uri())
        finally:
            browser.close()
    picture.write_bytes(shown)
    events = [(event["method"], event["params"]) for event in browser.events]
    asked = [of["request"]["url"] for method, of in events if method == "Network.requestWillBeSent"]
    wrong = [of for method, of in events if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")]
    assert not wrong, wrong
    assert asked == [page.as_uri()], asked
    assert measured["drawn"] > 0 and measured["empty"] == 0 and not measured["wide"], measured
    assert measured["texts"] > 0 and measured["unwritten"] == 0, measured
    print(f"{page.name}: {measured['drawn']} drawings and tables, {measured['texts']} texts, and it asks for nothing else; picture in {picture}")


if __name__ == "__main__":
    main()
