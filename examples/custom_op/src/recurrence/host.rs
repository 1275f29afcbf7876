//! The kernels on the CPU: sequences side by side, on the threads of rayon.

use std::ops::{Add, Mul};

use rayon::prelude::*;
use refrain::custom::{HostOperands, KernelElement};
use refrain::{Result, bf16, f16};

/// A float, and the type that it is computed in.
pub(crate) trait Float: KernelElement {
    type Wide: Copy + Send + From<f32> + Add<Output = Self::Wide> + Mul<Output = Self::Wide>;

    fn wide(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! floats {
    ($($type:ty as $wide:ty, $narrow:expr;)*) => {$(
        impl Float for $type {
            type Wide = $wide;

            fn wide(self) -> $wide {
                self.into()
            }

            fn narrow(wide: $wide) -> $type {
                $narrow(wide)
            }
        }
    )*};
}

floats! {
    f64 as f64, f64::from;
    f32 as f32, f32::from;
    f16 as f32, f16::from_f32;
    bf16 as f32, bf16::from_f32;
}

pub(crate) fn forward<T: Float>(operands: &HostOperands<'_>, start: f32) -> Result<()> {
    let (gate, gate_strides) = operands.strided_operand::<T>(0)?;
    let (x, x_strides) = operands.strided_operand::<T>(1)?;
    let shape = operands.result_shape(0)?;
    let (time, channels) = (shape[1], shape[2]);
    let y = operands.result::<T>(0)?;
    // (T, C) of each b
    y.par_chunks_mut(time * channels).enumerate().for_each(|(b, y)| {
        let mut state = vec![T::Wide::from(start); channels];
        for (t, y) in y.chunks_exact_mut(channels).enumerate() {
            let at = |strides: &[usize], c: usize| b * strides[0] + t * strides[1] + c * strides[2];
            for (c, (y, state)) in y.iter_mut().zip(&mut state).enumerate() {
                *state = gate[at(gate_strides, c)].wide() * *state + x[at(x_strides, c)].wide();
                *y = T::narrow(*state);
            }
        }
    });
    Ok(())
}

pub(crate) fn backward<T: Float>(operands: &HostOperands<'_>, start: f32) -> Result<()> {
    let (gate, y) = (operands.operand::<T>(0)?, operands.operand::<T>(1)?);
    let dy = operands.operand::<T>(2)?;
    let shape = operands.result_shape(0)?;
    let (time, channels) = (shape[1], shape[2]);
    let (dgate, dx) = (operands.result::<T>(0)?, operands.result::<T>(1)?);
    let size = time * channels;
    dgate.par_chunks_mut(size).zip(dx.par_chunks_mut(size)).enumerate().for_each(|(b, (dgate, dx))| {
        // What the next time step adds to the gradient of this one.
        let mut later = vec![T::Wide::from(0.0); channels];
        for t in (0..time).rev() {
            for (c, later) in later.iter_mut().enumerate() {
                let own = t * channels + c;
                let at = b * size + own;
                let before = if t > 0 { y[at - channels].wide() } else { start.into() };
                let d = dy[at].wide() + *later;
                dx[own] = T::narrow(d);
                dgate[own] = T::narrow(d * before);
                *later = d * gate[at].wide();
            }
        }
    });
    Ok(())
}
