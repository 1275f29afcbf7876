"""What sweep.py draws."""

import argparse
import random
import tempfile
import tomllib
import unittest

import sweep


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


if __name__ == "__main__":
    unittest.main()
