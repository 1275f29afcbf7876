// What the kernels of attention begin with: of their `Job`, q, k and the like are [sequences, tokens, heads, dim].

extern __shared__ __align__(16) unsigned char memory[];

