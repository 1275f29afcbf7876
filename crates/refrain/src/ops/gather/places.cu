// Elements added to picked places: y, along an axis, is the sum of the sources whose index names the place, in the
// order of the index, on top of `base`. Out of range is reported and nobody's. Each place looks through the entries that
// can name it (add), or the entries are sorted by the place that they name (begin, keys, the sort, add_runs). Constants:
// ELEMENT; INDEX; ID, the dtype of the index; RANK, the number of axes.

DEVICE bool check(const Places& p, i64 i) {
    const bool fits = (u64)i < (u64)p.size;
    if (!fits) report(p.faults, i, p.size);
    return fits;
}
