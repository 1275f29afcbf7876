#!/usr/bin/env python3
"""A preprocessor of mdBook: links to files of the repository that are not in the book, such as `../bench/README.md`, get the
repository's address, which `Cargo.toml` has."""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main() -> None:
    if sys.argv[1:2] == ["supports"]:
        return
    address = re.search(r'^repository = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE).group(1)

    def outside(item) -> None:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            chapter["content"] = chapter["content"].replace("](../", f"]({address}/blob/main/")
            for inner in chapter["sub_items"]:
                outside(inner)

    _, book = json.load(sys.stdin)
    # The list was called `sections` before mdBook 0.5.
    for item in book.get("items") or book.get("sections"):
        outside(item)
    json.dump(book, sys.stdout)


main()
