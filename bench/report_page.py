#!/usr/bin/env python3
"""Opens the report of a run in a real browser: fails if the page asks for anything else than itself, if the browser reports an
error, or if a drawing has no size. Writes a picture of it.

    python3 bench/report_page.py runs/nyc-weather-1/report.html report.png

It needs Chromium (`apt install chromium`), which the variable CHROMIUM may name.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HEIGHT = 6000
PROBE = """
<script>
addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("svg, table")].map((of) => of.getBoundingClientRect());
  const empty = boxes.filter((box) => box.width < 10 || box.height < 10).length;
  const wide = document.documentElement.scrollWidth > innerWidth;
  const asked = performance.getEntriesByType("resource").length;
  document.body.setAttribute("data-probe", JSON.stringify({drawn: boxes.length, empty, wide, asked}));
});
</script>
"""


def browser(*arguments: str) -> subprocess.CompletedProcess:
    command = [os.environ.get("CHROMIUM", "chromium"), "--headless", "--no-sandbox", "--disable-gpu"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=180, check=True)


def main() -> None:
    page, picture = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        shown = browser(f"--window-size=1040,{HEIGHT}", f"--screenshot={picture}", page.as_uri())
        wrong = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
        assert not wrong, wrong
        # The same page with a script that measures it.
        probed = pathlib.Path(folder, "page.html")
        probed.write_text(page.read_text().replace("</body>", PROBE + "</body>"))
        dom = browser("--window-size=1040,2000", "--dump-dom", probed.as_uri()).stdout
    found = re.search(r'data-probe="([^"]+)"', dom)
    assert found, "the page did not load"
    measured = json.loads(found.group(1).replace("&quot;", '"'))
    assert measured["drawn"] > 0 and measured["empty"] == 0 and not measured["wide"], measured
    assert measured["asked"] == 0, measured
    print(f"{page.name}: {measured['drawn']} drawings and tables, and it asks for nothing else; picture in {picture}")


if __name__ == "__main__":
    main()
