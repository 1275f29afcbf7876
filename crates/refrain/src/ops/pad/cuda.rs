//! A tensor with a margin on CUDA.

use smallvec::SmallVec;

use super::Pad;
use crate::device::cuda::{CudaArgs, Params, Source, Spec};
use crate::error::Result;
use crate::kernels::units::{self, UNITS};

static SOURCE: Source = Source { name: "pad", parts: &[UNITS, include_str!("kernel.cu")] };

/// An axis, or several of which only the first has a margin.
struct Axis {
    /// The size of the operand.
    size: usize,
    before: usize,
    after: usize,
}

pub(super) fn pad(op: &Pad, value: f64, args: &mut CudaArgs<'_>) -> Result<()> {
    let (n, dtype) = (args.write_shape(0).numel(), args.write_dtype(0));
    if n == 0 {
        return Ok(());
    }
    let mut axes: SmallVec<[Axis; 6]> = SmallVec::new();
    for (&size, &(before, after)) in args.read_shape(0).iter().zip(&op.padding) {
        match axes.last_mut() {
            Some(last) if before == 0 && after == 0 => {
                last.size *= size;
                last.before *= size;
                last.after *= size;
            }
            _ => axes.push(Axis { size, before, after }),
        }
    }
    // The last axis in units as large as its parts allow.
    let bytes = dtype.size();
    let parts = axes.last().map_or([1, 0, 0], |last| [last.size, last.before, last.after]);
    let addresses = [args.read(0), args.write(0)];
    let unit = units::largest(parts.map(|n| (n * bytes) as u64).into_iter().chain(addresses));
    if let Some(last) = axes.last_mut() {
        let units = |n: usize| n * bytes / unit;
        *last = Axis { size: units(last.size), before: units(last.before), after: units(last.after) };
    }
    let rank = axes.len().max(1).next_power_of_two();
    let all = n * bytes / unit;
    let mut words: SmallVec<[u64; 40]> = SmallVec::from_slice(&addresses);
    words.extend([all as u64, units::value(dtype, value)]);
    let mut strides: SmallVec<[usize; 6]> = SmallVec::from_elem(1, axes.len());
    for i in (1..axes.len()).rev() {
        strides[i - 1] = strides[i] * axes[i].size;
    }
    let padding = rank - axes.len();
    let mut row = |values: &mut dyn Iterator<Item = usize>, fill: u64| {
        words.extend(std::iter::repeat_n(fill, padding));
        words.extend(values.map(|v| v as u64));
    };
    row(&mut axes.iter().map(|a| a.before + a.size + a.after), 1);
    row(&mut axes.iter().map(|a| a.before), 0);
    row(&mut axes.iter().map(|a| a.size), 1);
    row(&mut strides.iter().copied(), 0);
    let spec = units::constants(Spec::new(&SOURCE, "pad"), unit, all).int("RANK", rank as i64);
    args.kernel(spec, units::grid(args, all), &Params::new().words(&words))
}
