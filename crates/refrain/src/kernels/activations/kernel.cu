// Activation functions, for elementwise kernels and for the end of a matrix product. No constants.

template <typename R> DEVICE R relu_(R x) { return x < (R)0 ? (R)0 : x; }
template <typename R> DEVICE R gelu_(R x) { return (R)0.5 * x * ((R)1 + erf_(x * (R)0.70710678118654752440)); }
// 2 sqrt(2/pi) (x + 0.044715 x^3)
template <typename R> DEVICE R gelu_logit(R x) {
    return x * ((R)1.59576912160573071176 + (R)0.07135481627260025 * (x * x));
}
// x/2 (1 + tanh(u)) equals x sigmoid(2u), which stays accurate where tanh is near -1.
template <typename R> DEVICE R gelu_tanh_(R x) { return x * sigmoid_(gelu_logit(x)); }
template <typename R> DEVICE R silu_(R x) { return x * sigmoid_(x); }

