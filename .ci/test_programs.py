"""Of cargo's messages on standard input, the files of the test programs of one package, whose folder is the argument."""

import json
import os
import sys

package = os.path.abspath(sys.argv[1])
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["profile"]["test"] and os.path.dirname(message["manifest_path"]) == package:
        print(message["executable"])
