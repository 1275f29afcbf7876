"""Compares the event file of a run, as TensorBoard's own reader reads it, with the run's metrics.jsonl.

    python .ci/event_file.py runs/mine       # a run of `refrain train --tensorboard`
"""

import json
import sys
from pathlib import Path

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAGS = {"train_loss": "loss/train", "validation_loss": "loss/validation", "learning_rate": "learning_rate",
        "seconds": "seconds_per_epoch"}


def main():
    run = Path(sys.argv[1])
    expected = {}
    for report in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for key, value in report.items():
            tag = TAGS.get(key, key.replace("validation_", "validation/"))
            if key in TAGS or key.startswith("validation_"):
                expected[tag, report["epoch"]] = numpy.float32(value)
    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    values = [(tag, event) for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]
    found = {(tag, event.step): numpy.float32(event.value) for tag, event in values}
    assert expected and found == expected, f"the event file has {found}, metrics.jsonl {expected}"
    assert len(values) == len(found), f"twice the same tag and step: {values}"
    print(f"TensorBoard reads the {len(found)} values of {run / 'metrics.jsonl'}")


if __name__ == "__main__":
    main()
