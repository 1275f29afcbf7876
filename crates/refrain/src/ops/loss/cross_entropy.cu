// Cross entropy of logits with class ids. An id that is not one of the classes is reported, and makes the loss NaN.
// Constants: COMPUTE (the arithmetic), IN (dtype of the logits), ID (of the ids).

// The larger number; NaN is ignored.
struct Larger { DEVICE COMPUTE operator()(COMPUTE a, COMPUTE b) const { return b > a ? b : a; } };

// The loss of a row, from its largest logit, the logarithm of its sum of exponentials, and the sum of its distances
// from the largest logit.
DEVICE double loss_of(const IN* x, i64 id, i64 classes, COMPUTE shift, COMPUTE log, COMPUTE distances, double smoothing,
                      const Reporter& faults) {
    if (id < 0 || id >= classes) {
        report(faults, id, classes);
        return (double)NAN_F;
    }
    COMPUTE loss = (COMPUTE)(1.0 - smoothing) * (log + (shift - to<COMPUTE>(x[id])));
    if (smoothing > 0.0) {
        loss += (COMPUTE)smoothing * (log + (COMPUTE)(1.0 / (double)classes) * distances);
    }
    return (double)loss;
}
