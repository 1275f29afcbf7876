// What some rows add to the gradients of a weight and a bias. Constant: COMPUTE (the arithmetic).

struct State { COMPUTE weight, bias; };
typedef State Local;
DEVICE State state(const Local& l) { return l; }
DEVICE State merge(State a, State b) { return {a.weight + b.weight, a.bias + b.bias}; }
