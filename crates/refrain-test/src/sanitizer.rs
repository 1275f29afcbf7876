//! Less work under NVIDIA's sanitizer. The unit tests of `refrain` include this file, too.

use refrain::{Result, Tensor, no_grad};

/// Whether NVIDIA's sanitizer runs the test (`REFRAIN_SANITIZER=1`), which makes it about a hundred times slower.
pub fn sanitized() -> bool {
    std::env::var("REFRAIN_SANITIZER").is_ok_and(|v| v == "1")
}

/// All of them. Under the sanitizer one in `n`; which ones depends on `turn`, so that over `n` turns all have run.
pub fn shortened<T>(all: impl IntoIterator<Item = T>, turn: usize, n: usize) -> impl Iterator<Item = T> {
    let n = if sanitized() { n } else { 1 };
    all.into_iter().skip(turn % n).step_by(n)
}

/// Checks gradients as [`refrain::gradcheck`] does. Under the sanitizer, which looks at how kernels use memory and not at what
/// they compute, it only runs them: the forward pass with gradients and without, and the backward pass.
pub fn gradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, inputs: &[Tensor], tolerance: f64) -> Result<()> {
    if !sanitized() {
        return refrain::gradcheck(f, inputs, tolerance);
    }
    for input in inputs.iter().filter(|t| t.requires_grad() && t.grad().is_none()) {
        input.set_grad(&input.zeros_like()?)?;
    }
    no_grad(|| f(inputs))?;
    let out = f(inputs)?;
    out.backward_with(&out.detach().ones_like()?)
}
