//! Polynomials in f32 and in f64.

/// Defines them for a type.
macro_rules! polynomials {
    ($t:ident) => {
        /// `c[0] + c[1] x + c[2] x^2 + ...`
        #[inline(always)]
        pub(super) fn polynomial<const N: usize>(x: $t, c: [$t; N]) -> $t {
            let mut sum = c[N - 1];
            for i in (0..N - 1).rev() {
                sum = sum.mul_add(x, c[i]);
            }
            sum
        }

        /// [`polynomial`], where a sum waits for half as many others.
        #[inline(always)]
        pub(super) fn polynomial_by_pairs<const N: usize>(x: $t, c: [$t; N]) -> $t {
            let square = x * x;
            let pair = |i: usize| if i + 1 < N { x.mul_add(c[i + 1], c[i]) } else { c[i] };
            let last = (N - 1) / 2;
            let mut sum = pair(2 * last);
            for i in (0..last).rev() {
                sum = sum.mul_add(square, pair(2 * i));
            }
            sum
        }
    };
}
pub(super) use polynomials;
