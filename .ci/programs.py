"""Of cargo's messages on standard input, the test programs that it built: for each the folder of its package and the file."""

import json
import os
import sys

for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["profile"]["test"]:
        print(os.path.dirname(message["manifest_path"]), message["executable"])
