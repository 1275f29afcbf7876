"""python3 -m unittest discover bench"""

import unittest

import scaling
from peers import CONFIGS


class Estimate(unittest.TestCase):
    def test_the_measured_sizes_take_what_was_measured(self):
        for size, us in scaling.ALL_REDUCE:
            self.assertAlmostEqual(scaling.all_reduce(size, 2), us)

    def test_parameters_are_those_that_the_program_prints(self):
        counts = {"seed": 101_185, "small": 80_176, "large": 908_768, "cross": 1_682_187, "wide": 22_051_936, "long": 15_013_216}
        self.assertEqual({name: scaling.parameters(CONFIGS[name]) for name in counts}, counts)

    def test_one_bucket_is_exposed_and_of_many_the_last_one(self):
        time_of = lambda size: size / scaling.BUCKET * 10
        exposed = lambda step, buckets: scaling.exposed(step, buckets * scaling.BUCKET, time_of) - scaling.BESIDE
        self.assertAlmostEqual(exposed(1000, 1), 10)
        self.assertAlmostEqual(exposed(1000, 20), 10 + scaling.SLOWS * 190)
        # An exchange that takes longer than the backward pass ends after it: a bucket is there after the first of 20 us.
        self.assertAlmostEqual(exposed(30, 20), 181 + scaling.SLOWS * 19)

    def test_more_hosts_and_slower_networks_scale_worse(self):
        for config in scaling.STEPS:
            fast, slow = ([*scaling.NETWORKS][n] for n in (0, 1))
            machines = [(2,), (8,), (8, 8, fast), (8, 8, slow)]
            weak = [scaling.scaled(config, "bf16", *machine)[1] for machine in machines]
            self.assertEqual(weak, sorted(weak, reverse=True), config)


if __name__ == "__main__":
    unittest.main()
