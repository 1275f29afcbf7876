"""Writes a long file of many series, to measure training on them.

    python bench/many_series.py --ids 5000 --rows 50,400 > ragged.csv     # ragged: 50 to 400 days, from different days on
    python bench/many_series.py --ids 100000 --rows 1000 > many.csv       # 100 million rows, 2.4 GB

Each series has a week's rhythm, noise, and a level of its own.
"""

import argparse
import datetime
import random
import sys

# So many series differ in more than their level.
SHAPES = 50


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=int, required=True)
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], required=True, help="N, or LEAST,MOST")
    a = parser.parse_args()
    least, most = a.rows[0], a.rows[-1]
    numbers = random.Random(1)
    first = datetime.date(2015, 1, 1)
    days = [str(first + datetime.timedelta(days=day)) for day in range(2 * most)]

    def block(shape):
        """The rows of a series, with @ in the place of its id."""
        rows, begin = numbers.randint(least, most), 0 if least == most else numbers.randrange(most)
        level, week = 1.7**(shape % 10), numbers.random()
        values = (level * (10 + 4 * week * (day % 7 >= 5) + numbers.gauss(0, 1)) for day in range(rows))
        return "".join(f"@,{days[begin + day]},{value:.2f}\n" for day, value in enumerate(values))

    # Many series of the same length share their rows: writing 100 million of them takes a while.
    blocks = [block(shape) for shape in range(SHAPES)] if least == most else []
    sys.stdout.write("unique_id,ds,y\n")
    for id in range(a.ids):
        sys.stdout.write((blocks[id % SHAPES] if blocks else block(id)).replace("@", f"s{id}"))


if __name__ == "__main__":
    main()
