"""Kills random ranks of a training job at random moments; it must end with the weights of a job that nobody disturbed.

    cargo build --release
    python bench/kill.py [--kills 30] [--launcher here|torchrun] [--device cpu] [--ranks 2] [--epochs 40]
                         [--seconds 600] [--seed 1] [--refrain target/release/refrain]

The job is `refrain train --resume-if-possible` of a small model, saved every few steps. `here`: this script starts the ranks, and
starts all of them again when one has ended, as a launcher does; `torchrun`: `torchrun --max-restarts` does. A job that ends before
all kills are done is compared, and the next one begins. The weights, and the losses of every epoch, must be the same bits.
"""

import argparse
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import table

SETTINGS = """
context = 24
horizon = 6
patch = 6
stride = 3
d-model = 16
heads = 2
ffn = 32
layers = 2
batch-size = 16
dropout = 0.1
patience = 100000
"""


def series():
    """Hourly rows of two channels with a daily season."""
    row = lambda n: f"2020-01-{n // 24 + 1:02} {n % 24:02}:00:00,{math.sin(n / 4):.4f},{20 + 5 * math.cos(n / 4) + n % 7 / 9:.4f}"
    return "\n".join(["time,a,b", *map(row, range(600))]) + "\n"


class Job:
    """The ranks of a job, started by this script or by torchrun."""

    def __init__(self, out, a):
        command = [a.refrain, "train", "--config", "small.toml", "--data", "a.csv", "--out", out, "--resume-if-possible",
                   "--checkpoint-every", "20steps", "--epochs", a.epochs, "--device", a.device, "--threads", 1, "--json",
                   "--rendezvous-timeout", "12s"]
        self.command, self.a, self.out = [str(word) for word in command], a, out
        self.said = open(Path(a.folder) / f"{out}.log", "ab")
        self.starts = 0
        if a.launcher == "torchrun":
            self.parent = self.popen(
                [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", str(a.ranks), "--max-restarts",
                 str(a.kills + 5), "--monitor-interval", "0.1", "--master-port", str(a.port), *self.command], {})
        self.start()

    def popen(self, command, variables):
        return subprocess.Popen(command, cwd=self.a.folder, stdout=subprocess.PIPE, stderr=self.said, text=True,
                                env={**os.environ, **variables})

    def start(self):
        """Starts the ranks, or waits until torchrun has; their process ids."""
        self.starts += 1
        if self.a.launcher == "torchrun":
            before = getattr(self, "ranks", [])
            self.ranks = before
            while self.parent.poll() is None and (len(self.ranks) < self.a.ranks or set(self.ranks) & set(before)):
                time.sleep(0.02)
                self.ranks = children(self.parent.pid)
            return
        self.a.port += 2
        torchrun = {"WORLD_SIZE": self.a.ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self.a.port,
                    "TORCHELASTIC_RUN_ID": self.out, "TORCHELASTIC_RESTART_COUNT": self.starts}
        of = lambda rank: {name: str(value) for name, value in {**torchrun, "RANK": rank, "LOCAL_RANK": rank}.items()}
        self.processes = [self.popen(self.command, of(rank)) for rank in range(self.a.ranks)]
        self.ranks = [process.pid for process in self.processes]

    def is_over(self):
        """Whether the job has ended by itself."""
        if self.a.launcher == "torchrun":
            return self.parent.poll() is not None
        return all(process.poll() is not None for process in self.processes)

    def read_said(self):
        """What the ranks have said on standard error."""
        self.said.flush()
        return (Path(self.a.folder) / f"{self.out}.log").read_text(errors="replace")

    def kill(self, rank):
        """Kills a rank and starts all of them again."""
        try:
            os.kill(self.ranks[rank], signal.SIGKILL)
        except (ProcessLookupError, IndexError):
            return False
        if self.a.launcher == "here":
            statuses = [process.wait(60) for process in self.processes]
            if all(status == 0 for status in statuses):
                return False  # it had ended before
            # Status 1 is that of a rank that nobody met, because the other one was killed before.
            alone = 1 if "within 12s" in self.read_said() else 75
            wrong = [status for n, status in enumerate(statuses) if n != rank and status not in (75, 0, alone)]
            if wrong:
                fail(f"another rank ended with {wrong}, not with 75", self)
        self.start()
        return True

    def result(self):
        """The result of rank 0, once the job has ended well."""
        first = self.parent if self.a.launcher == "torchrun" else self.processes[0]
        printed, _ = first.communicate(timeout=600)
        if first.returncode != 0:
            fail(f"the job ended with {first.returncode}", self)
        losses = []
        for line in (Path(self.a.folder) / self.out / "metrics.jsonl").read_text().splitlines():
            epoch = json.loads(line)
            epoch.pop("seconds")
            losses.append(epoch)
        return json.loads(printed.strip().splitlines()[-1])["weights_sha256"], losses


def children(parent):
    """The process ids of the programs that a process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = status.read_text().rsplit(")", 1)
        except OSError:
            continue
        if int(rest.split()[1]) == parent and "(refrain" in name:
            found.append(int(status.parent.name))
    return sorted(found)


def fail(why, job):
    sys.exit(f"{job.read_said()[-3000:]}\nFAILED: {why}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--launcher", choices=("here", "torchrun"), default="here")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=600, help="no kill after this time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=29700)
    parser.add_argument("--refrain", type=table.program, default=str(table.ROOT / "target/release/refrain"), help="the program")
    a = parser.parse_args()
    moments, begun = random.Random(a.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as a.folder:
        Path(a.folder, "a.csv").write_text(series())
        Path(a.folder, "small.toml").write_text(SETTINGS)
        expected = Job("whole", a).result()
        whole = time.monotonic() - begun
        print(f"undisturbed: {whole:.1f} s, weights {expected[0][:16]}", flush=True)
        kills, jobs, killed = 0, 0, [0] * a.ranks
        while kills < a.kills and time.monotonic() - begun < a.seconds:
            jobs += 1
            job = Job(f"job-{jobs}", a)
            while kills < a.kills and time.monotonic() - begun < a.seconds:
                until = time.monotonic() + moments.uniform(0, whole / 3)
                while time.monotonic() < until and not job.is_over():
                    time.sleep(0.005)
                rank = moments.randrange(a.ranks)
                if job.is_over() or not job.kill(rank):
                    break
                kills += 1
                killed[rank] += 1
            if job.result() != expected:
                fail(f"job {jobs} ended with other weights or losses after {kills} kills", job)
            print(f"job {jobs}: the same bits after {job.starts} starts", flush=True)
        by_rank = ", ".join(f"rank {rank} {times} times" for rank, times in enumerate(killed))
        print(f"{kills} kills ({by_rank}) in {jobs} jobs: the same weights and losses, {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
