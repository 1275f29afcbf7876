// What kernels of attention are told.

// Queries, keys, values, outputs or gradients of them: [sequences, tokens, heads, dim].
struct Heads {
    // Where the first element is; elements from a sequence, a token and a head to the next.
    u64 at;
    i64 sequence, token, head;
};

struct Job {
    Heads q, k, v, d_o, o, dq, dk, dv;
    // [sequences, heads, queries]: of the rows of scores what the forward pass keeps, the largest (on tensor cores before
    // the scale) and 1 / the sum of the exponentials; and what kernels of the backward pass tell each other.
    u64 largest, inverse, softmaxes;
    i64 pairs, heads, queries, keys;
    // Pairs of a sequence and a head that a block takes, blocks that share a pair, and of the other side the rows that
    // pass by at a time.
    i64 together, parts, tile;
    double scale;
};

extern __shared__ __align__(16) unsigned char memory[];

