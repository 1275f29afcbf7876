"""An estimate of how the steps of `refrain bench step` scale to 8 GPUs of one host and to 64 GPUs of eight, from measured parts.

    python bench/scaling.py [--precisions f32,tf32,bf16]

Measured: the step on one H200, an all-reduce on two of them by size, and what else a step of two ranks takes. Assumed, and not
measured:

- inside a host, a ring moves as many bytes a second on 8 GPUs as on 2, and each further level of a tree takes HOP;
- between hosts, the GPUs of the same number exchange their eighth of the bytes beside the work inside the hosts, over networks of the
  given bandwidth and latency;
- the gradients of a step come evenly over the backward pass, which is the second two thirds of the step, in buckets, of which the
  last is small; the buckets are exchanged one after the other;
- with a batch that is cut (strong scaling), a step has as many launches, LAUNCH us each, and the rest shrinks with the rows.

A line has the exposed time (us a step) and the efficiency of weak scaling, and the speed-up of strong scaling.
"""

import argparse
import math

from peers import CONFIGS, PRECISIONS
from table import some_of

# us a step on one H200 (README.md), and launches a step.
STEPS = {
    "seed": {"f32": 283, "tf32": 288, "bf16": 204, "launches": 75},
    "small": {"f32": 611, "tf32": 581, "bf16": 404, "launches": 96},
    "large": {"f32": 1756, "tf32": 1412, "bf16": 767, "launches": 96},
    "cross": {"f32": 716, "tf32": 596, "bf16": 324, "launches": 82},
    "wide": {"f32": 137862, "tf32": 67118, "bf16": 26369, "launches": 180},
    "long": {"f32": 11891, "tf32": 6936, "bf16": 3224, "launches": 110},
}
# Bytes and us of a captured all-reduce on two H200 of one host (README.md).
ALL_REDUCE = [(0, 6.9), (4e3, 6.9), (0.4e6, 9.4), (2.4e6, 28), (16e6, 71), (88e6, 320)]
# us that a step of two ranks takes longer beside its last all-reduce: the loss, the weights of the ranks, events between streams.
# Measured: 22 to 40.
BESIDE = 30.0
# What an exchange beside the backward pass slows that down by, as a part of its own time: its kernels take multiprocessors.
# Measured: 0.5 (long) and 1.5 (wide).
SLOWS = 1.0
# Bytes of the largest bucket of gradients, and of the last one (crates/refrain-forecast/src/training/ranks.rs).
BUCKET, LAST_BUCKET = 16 << 20, 1 << 20
HOP = 1.5  # us for each level of a tree inside a host
# us of a launch that do not shrink with the batch. Measured with half of the batch: 1.9 (seed) and 2.3 (large).
LAUNCH = 2.0
# Bytes a second for each host, and us for each level of a tree between hosts.
NETWORKS = {"400 Gb/s a GPU": (8 * 45e9, 5.0), "100 Gb/s a host": (11e9, 20.0)}


def parameters(c):
    """The number of trained values of a configuration of peers.py."""
    d, ffn = c["d"], c["ffn"]
    layer = 4 * (d * d + d) + 2 * d * ffn + ffn + d + 4 * d
    if "sources" in c:
        across = c["layers"] * (layer + c["heads"])
        return c["sources"] * (c["features"] + 1) * d + across + 2 * d + d * c["classes"] + c["classes"]
    patches = (c["context"] - c["patch"]) // c["stride"] + 1
    return (c["patch"] + 1 + patches) * d + c["layers"] * layer + patches * d * c["output"] + c["output"]


def on_two(size):
    """us of an all-reduce on two GPUs, between and beyond the measured sizes."""
    pairs = list(zip(ALL_REDUCE, ALL_REDUCE[1:]))
    (a, ta), (b, tb) = next((pair for pair in pairs if size <= pair[1][0]), pairs[-1])
    return ta + (tb - ta) * (size - a) / (b - a)


def all_reduce(size, gpus, hosts=1, network=None):
    """us of an all-reduce on hosts of so many GPUs."""
    latency = ALL_REDUCE[0][1] + HOP * (2 * math.log2(gpus) - 2)
    transfer = (on_two(size) - ALL_REDUCE[0][1]) * 2 * (gpus - 1) / gpus
    if hosts > 1:
        bandwidth, hop = NETWORKS[network]
        latency += 2 * math.log2(hosts) * hop
        transfer = max(transfer, 2 * (hosts - 1) / hosts * size / bandwidth * 1e6)
    return latency + transfer


def buckets(size):
    """The bytes of the buckets of so many bytes of gradients, in the order of their exchange."""
    rest, last = max(size - LAST_BUCKET, 0), min(size, LAST_BUCKET)
    return [BUCKET] * (rest // BUCKET) + [rest % BUCKET] * (rest % BUCKET > 0) + [last] * (last > 0)


def exposed(step, size, time_of):
    """us that a step takes longer, with a function from bytes to the us of an all-reduce."""
    backward, end, come = 2 / 3 * step, 0.0, 0
    for bucket in buckets(size):
        come += bucket
        end = max(end, backward * come / size) + time_of(bucket)
    after = end - backward
    beside = sum(map(time_of, buckets(size))) - after
    return after + SLOWS * beside + BESIDE


def scaled(config, precision, gpus, hosts=1, network=None):
    """The exposed time and the efficiency of weak scaling, and the speed-up of strong scaling."""
    size, ranks = 4 * parameters(CONFIGS[config]), gpus * hosts
    step, floor = STEPS[config][precision], STEPS[config]["launches"] * LAUNCH
    time_of = lambda bucket: all_reduce(bucket, gpus, hosts, network)
    more = exposed(step, size, time_of)
    part = floor + max(step - floor, 0) / ranks
    return more, step / (step + more), step / (part + exposed(part, size, time_of))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precisions", type=some_of(PRECISIONS), default=["f32", "bf16"])
    a = parser.parse_args()
    machines = [("2 GPUs", (2,)), ("8 GPUs", (8,))] + [(f"8 x 8, {network}", (8, 8, network)) for network in NETWORKS]
    columns = ["config", "precision", "MB", "us a step", *(name for name, _ in machines)]
    print(f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|")
    for config in STEPS:
        for precision in a.precisions:
            size = 4 * parameters(CONFIGS[config]) / 1e6
            cells = []
            for _, machine in machines:
                more, weak, strong = scaled(config, precision, *machine)
                cells.append(f"{more:,.0f}; {weak:.2f}; {strong:.1f}")
            print(f"| {config} | {precision} | {size:.1f} | {STEPS[config][precision]:,} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
