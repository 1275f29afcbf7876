"""What sweep.py draws, and what users.py measures."""

import argparse
import contextlib
import io
import json
import os
import random
import tempfile
import tomllib
import unittest

import sweep
import users


class Drawn(unittest.TestCase):
    def drawn(self, seed, **limits):
        a = argparse.Namespace(**{"device": "cuda", "tflop": 2.0, "values": 8e9, **limits})
        draw = random.Random(seed)
        return [sweep.drawn(draw, a) for _ in range(200)]

    def test_configurations_are_those_of_the_seed(self):
        self.assertEqual(self.drawn(1), self.drawn(1))
        self.assertNotEqual(self.drawn(1), self.drawn(2))

    def test_they_are_possible_and_not_too_large(self):
        drawn = self.drawn(3, tflop=0.1)
        for c in drawn:
            self.assertGreaterEqual(sweep.patches(c), 1)
            self.assertEqual(c["d_model"] % c["heads"], 0)
            self.assertTrue(16 <= c["d_model"] <= 768 and sweep.flop(c) <= 1e11, c)
        for name in ("precision", "norm", "norm_position", "dropout", "residual_attention", "revin", "channels"):
            self.assertGreater(len({c[name] for c in drawn}), 1, name)

    def test_the_arithmetic_is_that_of_the_products(self):
        c = {**sweep.BASE, "context": 8, "patch": 4, "stride": 4, "d_model": 2, "heads": 1, "layers": 1, "ffn": 3, "channels": 1,
             "batch_size": 1, "horizon": 5}
        # 2 patches: embedding 2x4x2; q, k, v, o 4 of 2x2x2; FFN 2 of 2x2x3; scores and weighted values 2x2x2 each; head 1x4x5.
        self.assertEqual(sweep.flop(c), 6 * (16 + 32 + 24 + 16 + 20))

    def test_refrain_reads_the_same_settings(self):
        c = {**sweep.BASE, "precision": "bf16", "residual_attention": True}
        with tempfile.TemporaryDirectory() as folder:
            read = tomllib.loads(sweep.settings(c, folder).read_text())
        self.assertEqual((read["residual-attention"], read["d-model"], read["precision"]), (True, 128, "bf16"))
        self.assertNotIn("channels", read)

    def test_a_line_has_the_ratio_to_the_best_other_and_gaps(self):
        measured = {"us": {"torch": 1234.5, "refrain": 600.0}, "ratio": 0.486}
        self.assertEqual(sweep.line(measured, ("width", "bf16")), "| width | bf16 | 1,234 |  | 600 | 0.49 |")
        self.assertEqual(sweep.line({"us": {"compiled": 7.0}, "ratio": None}, ()), "|  | 7 |  |  |")

    def test_a_summary_leaves_out_what_was_not_measured(self):
        done = [{"ratio": ratio} for ratio in (0.5, None, 1.5, 0.25)]
        self.assertEqual(sweep.summary(done), "3 configurations: median 0.50 of the best other's time, best 0.25, worst 1.50; 1 slower")
        self.assertEqual(sweep.summary([{"ratio": None}]), "nothing was measured")


class Users(unittest.TestCase):
    def test_a_row_overrides_the_defaults_of_its_model(self):
        c = users.configuration("weather", "tf32")
        self.assertEqual((c["model"], c["batch_size"], c["d_model"], c["dropout"], c["precision"]), ("patchtst", 64, 32, 0.5, "tf32"))
        self.assertNotIn("d_model", users.configuration("dlinear", "f32"))

    def test_every_row_is_a_possible_model(self):
        for name in users.ROWS:
            c = users.configuration(name, "f32")
            unknown = set(users.ROWS[name]) - {"model", "channels", "levels", *users.TRAINING, *users.DEFAULTS[c["model"]]}
            self.assertEqual(unknown, set(), name)
            self.assertEqual(c.get("d_model", 0) % c.get("heads", 1), 0, name)
            self.assertEqual("levels" in c, c["loss"] == "quantile", name)

    def test_names_of_rows_can_be_listed(self):
        self.assertFalse([name for name in users.ROWS if set(name) & {",", " "}])
        self.assertEqual(set(users.CPU) - set(users.ROWS), set())

    def test_what_fails_isolated_says_so_and_the_next_goes_on(self):
        isolated, errors = users.Isolated(), io.StringIO()
        self.addCleanup(isolated.end)
        with contextlib.redirect_stderr(errors):
            self.assertIsNone(isolated.result("broken", isolated.begin(json.loads, "{"), 60))
            self.assertIsNone(isolated.result("dead", isolated.begin(os._exit, 3), 0.5))
            isolated.end()
            self.assertEqual(isolated.result("whole", isolated.begin(json.loads, "[1]"), 60), [1])
        self.assertRegex(errors.getvalue(), r"broken: JSONDecodeError.*\ndead: no result after")


if __name__ == "__main__":
    unittest.main()
