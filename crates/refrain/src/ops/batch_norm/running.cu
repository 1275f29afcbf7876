// Statistics of batch norm in evaluation: mean and 1/std of running statistics. Constants: COMPUTE (the arithmetic),
// PARAMETER (dtype of running statistics).

struct Running {
    COMPUTE mean, inv;

    DEVICE Running(const PARAMETER* means, const PARAMETER* vars, i64 channel, double eps) {
        mean = to<COMPUTE>(means[channel]);
        inv = (COMPUTE)1 / sqrt_(to<COMPUTE>(vars[channel]) + (COMPUTE)eps);
    }
    DEVICE void store(COMPUTE* means, COMPUTE* invs, i64 channel) const {
        means[channel] = mean;
        invs[channel] = inv;
    }
};
