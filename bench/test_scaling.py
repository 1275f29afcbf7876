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

    def test_buckets_are_those_of_the_program(self):
        mib = 1 << 20
        self.assertEqual(scaling.buckets(5), [5])
        self.assertEqual(scaling.buckets(mib), [mib])
        self.assertEqual(scaling.buckets(3 * mib), [2 * mib, mib])
        self.assertEqual(scaling.buckets(35 * mib), [16 * mib, 16 * mib, 2 * mib, mib])

    def test_the_last_bucket_is_exposed_and_others_where_they_take_longer_than_the_backward_pass(self):
        mib = 1 << 20
        time_of = lambda size: size / mib
        exposed = lambda step, size: scaling.exposed(step, size * mib, time_of) - scaling.BESIDE
        self.assertAlmostEqual(exposed(1000, 1), 1)
        self.assertAlmostEqual(exposed(1000, 49), 1 + scaling.SLOWS * 48)
        # Of a backward pass of 30 us: the first third of the bytes is there after 9.8, and all take 49.
        after = 30 * 16 / 49 + 49 - 30
        self.assertAlmostEqual(exposed(45, 49), after + scaling.SLOWS * (49 - after))

    def test_more_hosts_and_slower_networks_scale_worse(self):
        for config in scaling.STEPS:
            fast, slow = ([*scaling.NETWORKS][n] for n in (0, 1))
            machines = [(2,), (8,), (8, 8, fast), (8, 8, slow)]
            weak = [scaling.scaled(config, "bf16", *machine)[1] for machine in machines]
            self.assertEqual(weak, sorted(weak, reverse=True), config)


if __name__ == "__main__":
    unittest.main()
