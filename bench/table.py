"""What the tables of cpu.py and gpu.py have in common."""

import argparse
import datetime
import json
import platform
import re
import shutil
import statistics
import subprocess
import sys
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def some_of(known):
    """For argparse: a list, separated by commas, of names that are known."""

    def parse(text):
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
        return names

    return parse


def program(text):
    """For argparse: a program by its path, as in ./refrain, or by its name among those of PATH."""
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"no program {text}; build it, or name another")
    return Path(found).absolute()  # A Path of its own loses `./`, which is what tells a file from a name.


def parser(doc, configs, variants, rounds):
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("--configs", type=some_of(configs), default=list(configs))
    p.add_argument("--variants", type=some_of(variants), default=list(variants), help="the others beside refrain")
    p.add_argument("--rounds", type=int, default=rounds)
    p.add_argument("--refrain", type=program, default=ROOT / "target/release/refrain", help="the program")
    return p


def output(name, command, **options):
    """What the command prints, or None, with the reason on standard error, if it fails."""
    try:
        ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        return failed(name, error)
    return failed(name, ran.stderr) if ran.returncode else ran.stdout


def failed(name, reason):
    print(f"{name}: {str(reason).strip()[-600:]}", file=sys.stderr, flush=True)


def median_us(text):
    """Of the result, a line of JSON, with which refrain and peers.py end."""
    return None if text is None else json.loads(text.strip().splitlines()[-1])["median_us"]


def header(*columns):
    print(f"| {' | '.join(columns)} | best other / refrain |\n{'| --- ' * (len(columns) + 1)}|", flush=True)


def row(names, programs, rounds, measure, shown):
    """Measures the programs, refrain first, in turn in every round; prints the medians over the rounds as a line.

    `measure` takes a program to microseconds a step or None, `shown` makes text of microseconds.
    """
    times = {program: [] for program in programs}
    for _ in range(rounds):
        for program in programs:
            if (us := measure(program)) is not None:
                times[program].append(us)
    medians = {program: statistics.median(t) for program, t in times.items() if t}
    others = [us for program, us in medians.items() if program != "refrain"]
    ratio = f"{min(others) / medians['refrain']:.2f}" if others and "refrain" in medians else ""
    cells = (shown(medians[program]) if program in medians else "" for program in programs)
    print(f"| {' | '.join([*names, *cells, ratio])} |", flush=True)


def machine(refrain=None, gpu=False):
    """Prints what the table is measured on; of `refrain`, the program, its version."""
    if gpu:
        query = ("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
        print("GPU (name, driver, memory):", (output("nvidia-smi", query) or "unknown").strip())
    try:
        cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        cpu = None
    print("CPU:", cpu[1] if cpu else platform.processor() or platform.machine())
    versions = [(output("refrain", (refrain, "--version")) or "no refrain").strip()] if refrain else []
    for package in ("torch", "triton", "jax", "optax"):
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    print(f"Versions: {', '.join(versions)}\nDate: {datetime.date.today()}\n", flush=True)
