"""refrain beside PyTorch on models as users bring them: the defaults of `refrain train`, its presets, and settings that nobody tuned for.

    pip install torch
    cargo build --release
    python bench/users.py --device cuda [--rows defaults,dlinear,...] [--precisions f32,tf32,bf16] [--compiled bf16]
    python bench/users.py --device cpu [--rows ...] [--threads 2]

A row is a model with its loss and batch; what it leaves out is as in `refrain train`. Steps and measurements are those of sweep.py. For
the precisions of --compiled, PyTorch's step also runs through torch.compile: first of all, --jobs processes compile side by side for at
most --ahead seconds, and fill the cache from which the measured process reads. A row that fails prints why, and the others go on. When
--budget seconds have passed, no further row begins. --out gets a line a row, as soon as it is measured.
"""

import json
import multiprocessing
import os
import time

import sweep
import table

TRAINING = {"context": 336, "horizon": 96, "batch_size": 64, "loss": "mse"}
DEFAULTS = {
    "patchtst": {"patch": 24, "stride": 24, "end_padding": True, "d_model": 64, "heads": 4, "layers": 2, "ffn": 128, "dropout": 0.2,
                 "attention_dropout": 0.0, "norm": "batch", "norm_position": "post", "channel_attention": False,
                 "residual_attention": False, "revin": True},
    "nlinear": {"individual": False},
    "dlinear": {"moving_average": 25, "individual": False},
    "itransformer": {"d_model": 128, "heads": 8, "layers": 2, "ffn": 128, "dropout": 0.1, "revin": True},
    "tsmixer": {"layers": 2, "ffn": 64, "dropout": 0.5, "norm": "layer", "revin": True},
}
FINE = {"patch": 16, "stride": 8}
ROWS = {
    "defaults": {"channels": 7},
    "weather": {"channels": 18, "d_model": 32, "ffn": 64, "dropout": 0.5, "revin": False},  # `refrain train` without arguments
    "etth1": {"channels": 7, **FINE, "d_model": 16, "layers": 3, "dropout": 0.3, "residual_attention": True, "batch_size": 128},
    "itransformer-etth1": {"model": "itransformer", "channels": 7, "context": 96, "d_model": 256, "ffn": 256, "batch_size": 32},
    "tsmixer-etth1": {"model": "tsmixer", "channels": 7, "context": 512, "dropout": 0.9, "norm": "batch"},
    "defaults, batch 128": {"channels": 21, "batch_size": 128},
    "last batch of 5": {"channels": 21, "batch_size": 5},
    "1 channel, batch 32": {"channels": 1, "batch_size": 32},
    "context 96": {"channels": 7, **FINE, "context": 96, "layers": 3, "batch_size": 32},
    "quantile loss": {"channels": 21, "loss": "quantile", "levels": "80,90"},
    "Student-t loss": {"channels": 21, "loss": "student-t"},
    "width 512": {"channels": 21, **FINE, "context": 512, "d_model": 512, "heads": 8, "layers": 6, "ffn": 2048, "dropout": 0.1},
    "width 256": {"channels": 21, **FINE, "context": 512, "d_model": 256, "heads": 8, "layers": 4, "ffn": 1024},
    "width 768": {"channels": 21, **FINE, "context": 512, "d_model": 768, "heads": 12, "layers": 6, "ffn": 3072, "batch_size": 16},
    "attention dropout": {"channels": 21, **FINE, "d_model": 256, "heads": 8, "ffn": 512, "attention_dropout": 0.1},
    "heads of 20": {"channels": 21, "context": 500, "patch": 12, "stride": 6, "d_model": 100, "heads": 5, "ffn": 300},
    "heads of 12": {"channels": 21, **FINE, "context": 700, "d_model": 120, "heads": 10, "batch_size": 32},
    "paper": {"channels": 21, **FINE, "d_model": 128, "heads": 16, "layers": 3, "ffn": 256, "batch_size": 32},
    "residual attention": {"channels": 21, "d_model": 128, "heads": 16, "residual_attention": True, "batch_size": 128},
    "channel attention": {"channels": 21, "d_model": 128, "heads": 8, "channel_attention": True, "batch_size": 32},
    "pre-norm": {"channels": 7, **FINE, "d_model": 128, "heads": 8, "layers": 6, "ffn": 512, "dropout": 0.1, "norm": "layer",
                 "norm_position": "pre"},
    "dlinear": {"model": "dlinear", "channels": 21},
    "dlinear, individual": {"model": "dlinear", "channels": 21, "individual": True},
    "nlinear": {"model": "nlinear", "channels": 321, "batch_size": 32},
    "itransformer": {"model": "itransformer", "channels": 321, "batch_size": 32},
    "tsmixer": {"model": "tsmixer", "channels": 21},
}
ROWS = {name.replace(" ", "-").replace(",", ""): row for name, row in ROWS.items()}
# The others take seconds a step there.
CPU = ("defaults", "weather", "etth1", "itransformer-etth1", "tsmixer-etth1", "last-batch-of-5", "1-channel-batch-32", "context-96",
       "quantile-loss", "dlinear")


def configuration(name, precision):
    """All settings of a row."""
    row = {"model": "patchtst", **ROWS[name]}
    return {**TRAINING, **DEFAULTS[row["model"]], **row, "precision": precision}


def compile_ahead(c, a):
    """Fills the cache of torch.compile."""
    sweep.Torch(c, a, compiled=True).steps(1)


class Isolated:
    """Runs functions in processes of their own, so that what fails there or never ends does no harm here."""

    def __init__(self, processes=1):
        self.processes, self.pool = processes, None

    def begin(self, function, *arguments):
        if self.pool is None:
            self.pool = multiprocessing.get_context("spawn").Pool(self.processes)
        return self.pool.apply_async(function, arguments)

    def result(self, name, begun, seconds):
        """What the function returned, or None, with the reason on standard error."""
        try:
            return begun.get(max(0.0, seconds))
        except multiprocessing.TimeoutError:
            return table.failed(name, f"no result after {seconds:.0f} s")
        except Exception as error:
            return table.failed(name, f"{type(error).__name__}: {error}")

    def end(self):
        if self.pool is not None:
            self.pool.terminate()
        self.pool = None


def ahead(cases, a):
    """Compiles these cases side by side; returns when all are done or the time is up."""
    began = time.monotonic()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(max(1, (os.cpu_count() or 1) // a.jobs))
    isolated = Isolated(a.jobs)
    begun = {case: isolated.begin(compile_ahead, configuration(*case), a) for case in cases}
    for (name, precision), result in begun.items():
        isolated.result(f"{name} {precision}, compiled", result, began + a.ahead - time.monotonic())
    isolated.end()
    done = [case for case, result in begun.items() if result.ready() and result.successful()]
    print(f"{len(done)} of {len(cases)} compiled in {time.monotonic() - began:.0f} s\n", flush=True)
    return done


def names(text):
    """For argparse: a list of names, which may be empty."""
    return table.some_of(("f32", "tf32", "bf16"))(text) if text else []


def main():
    p = sweep.parser(__doc__, rounds=1, seconds=0.1, limit=60)
    p.add_argument("--rows", type=table.some_of(ROWS), help="all on a GPU, the small ones on the CPU")
    p.add_argument("--precisions", type=names, help="all on a GPU, f32 on the CPU")
    p.add_argument("--compiled", type=names, default=[], help="the precisions in which PyTorch also runs through torch.compile")
    p.add_argument("--jobs", type=int, default=8, help="how many processes compile side by side")
    p.add_argument("--ahead", type=float, default=180, help="how many seconds they may take")
    p.add_argument("--budget", type=float, default=450, help="after so many seconds no further row begins")
    a = p.parse_args()
    began = time.monotonic()
    cuda = a.device == "cuda"
    a.rows = a.rows or list(ROWS if cuda else CPU)
    a.precisions = a.precisions or (["bf16", "tf32", "f32"] if cuda else ["f32"])
    if not cuda:
        os.sched_setaffinity(0, range(a.threads))
    table.machine(a.refrain, gpu=cuda)
    cases = [(name, precision) for name in a.rows for precision in a.precisions]
    compiled = ahead([case for case in cases if case[1] in a.compiled], a) if a.compiled else []
    isolated, done = Isolated(), []
    sweep.header(("settings", "precision"))
    for number, case in enumerate(cases):
        if time.monotonic() - began > a.budget:
            print(f"\nNo time for the last {len(cases) - number} of {len(cases)}, from {' '.join(case)} on.")
            break
        begun = isolated.begin(sweep.measured, configuration(*case), a, case in compiled)
        result = isolated.result(" ".join(case), begun, 2 * a.limit)
        expected = {"torch", "refrain"} | ({"compiled"} if case in compiled else set())
        if result is None or expected - set(result["us"]):
            isolated.end()  # An error may have left the GPU's state in that process unusable.
        if result is None:
            continue
        done.append({**result, "row": case[0]})
        print(sweep.line(result, case), flush=True)
        if a.out:
            with a.out.open("a") as file:
                print(json.dumps(done[-1]), file=file, flush=True)
    isolated.end()
    print()
    for precision in a.precisions:
        print(f"{precision}: {sweep.summary([c for c in done if c['precision'] == precision])}")


if __name__ == "__main__":
    main()
