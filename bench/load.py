"""How fast a large safetensors file gets to a GPU: refrain, the safetensors library, and the copy that limits both.

    python3 bench/load.py [--gigabytes 8] [--refrain target/release/refrain] [--folder /tmp]
    python3 bench/load.py --preadv 1,4,8,16        # reading the file alone, without a GPU, by so many threads

The file is written once and then read from the page cache. It has 64 tensors of random numbers in bf16. The limit is a copy
of as many bytes from pinned host memory, in pieces of 64 MiB. Each figure is the median of several rounds, taken in turn;
refrain's process is started in each round and its first load, which allocates memory, is left out. `--preadv` reads the file into
buffers of 8 MiB, one for each thread, and prints the best round.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from safetensors.torch import load_file, save_file

TENSORS = 64


def seconds(work):
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def read(path, total, threads):
    """Reads the file, each thread a range of it. Returns the seconds."""
    share = -(-total // threads)

    def part(begin):
        buffer, file = bytearray(8 << 20), os.open(path, os.O_RDONLY)
        for at in range(begin, min(begin + share, total), len(buffer)):
            os.preadv(file, [buffer], at)
        os.close(file)

    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(0, total, share)))
    return time.perf_counter() - begun


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=8)
    parser.add_argument("--refrain", default="target/release/refrain")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--preadv", type=lambda text: [int(threads) for threads in text.split(",")], help="numbers of threads")
    args = parser.parse_args()
    rows = int(args.gigabytes * 1e9 / TENSORS / 2 / 4096)
    total = rows * 4096 * 2 * TENSORS
    path = os.path.join(args.folder, "refrain-bench-load.safetensors")
    save_file({f"layer.{i}": torch.randn(rows, 4096).bfloat16() for i in range(TENSORS)}, path)
    with open(path, "rb") as file:  # into the page cache
        while file.read(1 << 26):
            pass
    if args.preadv:
        for threads in args.preadv:
            rate = total / min(read(path, total, threads) for _ in range(args.rounds)) / 1e9
            print(f"preadv, {threads} threads: {rate:.1f} GB/s")
        return os.remove(path)
    piece = torch.empty(1 << 26, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(total, dtype=torch.uint8, device="cuda")

    def pinned():
        for at in range(0, total - piece.numel() + 1, piece.numel()):
            target[at : at + piece.numel()].copy_(piece, non_blocking=True)

    copied = total // piece.numel() * piece.numel()
    rates = {"pinned copy": [], "safetensors": [], "refrain": []}
    pinned()
    for _ in range(args.rounds):
        rates["pinned copy"].append(copied / seconds(pinned) / 1e9)
        rates["safetensors"].append(total / seconds(lambda: load_file(path, device="cuda")) / 1e9)
        command = [args.refrain, "bench", "load", path, "--device", "cuda", "--repeats", "4", "--json"]
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rates["refrain"].append(total / statistics.median(json.loads(out)["seconds"][1:]) / 1e9)
    limit = statistics.median(rates["pinned copy"])
    print(f"{torch.cuda.get_device_name()}, {total / 1e9:.2f} GB, page cache warm, {args.rounds} rounds")
    for name, each in rates.items():
        rate = statistics.median(each)
        print(f"{name:12} {rate:6.1f} GB/s  {rate / limit:.2f} of the pinned copy  {[round(r, 1) for r in each]}")
    os.remove(path)


if __name__ == "__main__":
    main()
