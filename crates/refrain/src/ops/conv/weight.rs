//! A convolution's weight as it is multiplied.

use super::cuda::{FACTOR, Tile, spec};
use super::unfolded::PIECE_BYTES;
use super::{Convolution, Direction};
use crate::device::HostArgs;
use crate::device::cpu::numeric::Real;
use crate::device::cpu::widen::{Widened, output};
use crate::device::cuda::{CudaArgs, Grid, MMA, Pointer, Source, params};
use crate::error::{Error, Result};
use crate::kernels::products::cuda::FORMS;
use crate::ops::{Op, Spec, Specs, apply_once};
use crate::tensor::{DType, Tensor};
use crate::types::Precision;

static WEIGHT: Source =
    Source { name: "conv_lay_out_weight", parts: &[MMA, FORMS, FACTOR, include_str!("weight.cu")] };

/// What a block lays out.
const ROWS: usize = 4;
const CHANNELS: usize = 64;
const MOST_TAPS: usize = 16;
const THREADS: usize = 256;

params! {
    struct ConvWeight {
        weight: Pointer = "const W_TYPE*",
        y: Pointer = "IN*",
        /// Of a group.
        rows: i64,
        channels: i64,
        taps: i64,
        /// Channels of a row and a tap, with zeros.
        padded: i64,
    }
}

/// The weight of a convolution, rounded to what is multiplied: for each channel of the result a row of the window's elements, each of which
/// has the channels of the source that it meets, filled up with zeros to whole pieces. The operand is the weight.
#[derive(Clone, Debug)]
struct LayOutWeight {
    groups: usize,
    /// Channels of the result and of the source, of a group.
    rows: usize,
    channels: usize,
    taps: usize,
    direction: Direction,
    factors: DType,
    precision: Precision,
}

/// Lays a weight out. While a step is recorded, this is done once until the weight is written to, and needs to wait for nothing else.
pub(super) fn lay_out_weight(op: &Convolution, weight: &Tensor) -> Result<Tensor> {
    let (places, [(from, _), (to, _)]) = (&op.places, op.sides());
    let laid = LayOutWeight {
        groups: places.groups,
        rows: to / places.groups,
        channels: from / places.groups,
        taps: places.window.kernel.iter().product(),
        direction: op.direction,
        factors: op.factors,
        precision: op.precision,
    };
    let text = format!("{laid:?}");
    let missing = || Error::internal(LayOutWeight::NAME, "no result");
    apply_once(laid, text, weight)?.into_iter().next().ok_or_else(missing)
}

impl LayOutWeight {
    fn padded(&self) -> usize {
        self.channels.next_multiple_of(PIECE_BYTES / self.factors.size())
    }

    /// The place of the window of a row of all groups and a channel of its group, in the weight.
    fn place(&self, row: usize, channel: usize) -> usize {
        match self.direction {
            Direction::Forward => row * self.channels + channel,
            Direction::Transposed => {
                (row / self.rows * self.channels + channel) * self.rows + row % self.rows
            }
        }
    }

    fn write<R: Real>(&self, args: &HostArgs<'_>) -> Result<()> {
        let (weight, padded) = (Widened::<R>::operand(args, 0)?, self.padded());
        let weight = weight.get();
        output(args, 0, |y: &mut [R]| {
            for (line, y) in y.chunks_exact_mut(padded.max(1)).enumerate() {
                let (row, tap) = (line / self.taps, line % self.taps);
                for (channel, y) in y.iter_mut().enumerate() {
                    let there = channel < self.channels;
                    *y = if there { weight[self.place(row, channel) * self.taps + tap] } else { R::ZERO };
                }
            }
        })
    }
}

impl Op for LayOutWeight {
    const NAME: &'static str = "conv_lay_out_weight";

    fn infer(&self, _: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new([self.groups * self.rows, self.taps, self.padded()], self.factors).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        match self.factors {
            DType::F64 => self.write::<f64>(args),
            _ => self.write::<f32>(args),
        }
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let blocks = self.groups
            * self.channels.div_ceil(CHANNELS)
            * self.rows.div_ceil(ROWS)
            * self.taps.div_ceil(MOST_TAPS);
        if blocks == 0 {
            return Ok(());
        }
        // Its own tile has no meaning here.
        let tile = Tile { warps: [2, 2], fragments: [2, 4], depth: 32 };
        let how = (self.factors, self.precision);
        let spec = spec(&WEIGHT, "conv_lay_out_weight", tile, how, Some(self.direction))
            .dtype("W_TYPE", args.read_dtype(0));
        let told = ConvWeight {
            weight: args.read(0),
            y: args.write(0),
            rows: self.rows as i64,
            channels: self.channels as i64,
            taps: self.taps as i64,
            padded: self.padded() as i64,
        };
        args.kernel(spec, Grid::line(blocks, THREADS as u32), &told)
    }
}
