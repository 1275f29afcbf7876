//! A number for the bits of a tensor.

use super::{Op, Spec, Specs, apply};
use crate::device::cpu::parallel;
use crate::device::cuda::{Grid, KernelSpec, Pointer, Source, params};
use crate::device::{CudaArgs, HostArgs};
use crate::error::Result;
use crate::kernels::units;
use crate::tensor::{DType, Tensor};

static SOURCE: Source = Source { name: "checksum", parts: &[include_str!("kernel.cu")] };

/// Elements that become one number.
const CHUNK: usize = 1 << 14;

params! {
    struct ChecksumArgs {
        x: Pointer = "const UNIT*",
        y: Pointer = "i64*",
        n: i64,
    }
}

/// One number for each chunk of the operand, whatever its shape: i64 `[chunks]`.
#[derive(Clone, Copy, Debug)]
struct Checksum;

/// A number for an element and its place: the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable
/// pseudorandom number generators", 2014).
fn mixed(bits: u64, at: usize) -> u64 {
    let x = bits.wrapping_add((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

fn sums<T: bytemuck::Pod + Into<u64> + Sync>(args: &HostArgs<'_>) -> Result<()> {
    let x = args.read::<T>(0)?;
    parallel::pieces(args.write::<i64>(0)?, 1, |chunk, sum| {
        let elements = x[chunk * CHUNK..].iter().take(CHUNK).enumerate();
        let all = elements.fold(0, |sum: u64, (at, &bits)| sum.wrapping_add(mixed(bits.into(), at)));
        sum[0] = all as i64;
    });
    Ok(())
}

impl Op for Checksum {
    const NAME: &'static str = "checksum";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(Spec::new([x[0].numel().div_ceil(CHUNK)], DType::I64).one())
    }

    fn host(&self, args: &mut HostArgs<'_>) -> Result<()> {
        match args.read_dtype(0).size() {
            1 => sums::<u8>(args),
            2 => sums::<u16>(args),
            4 => sums::<u32>(args),
            _ => sums::<u64>(args),
        }
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let (n, chunks) = (args.read_shape(0).numel(), args.write_shape(0).numel());
        if n == 0 {
            return Ok(());
        }
        let spec = units::constants(KernelSpec::new(&SOURCE, "checksum"), args.read_dtype(0).size(), n)
            .int("CHUNK", CHUNK as i64)
            .int("THREADS", units::THREADS as i64);
        let kernel_args = ChecksumArgs { x: args.read(0), y: args.write(0), n: n as i64 };
        args.kernel(spec, Grid::line(chunks, units::THREADS as u32), &kernel_args)
    }
}

impl Tensor {
    /// A number for the bits of the elements in their row-major order, computed on the device: i64 `[]`. Tensors with the same
    /// elements have the same number, on every device; tensors that differ, in whatever bit, have the same one with a
    /// probability of about 2^-64. It is no protection against intent. Shape and dtype do not count, but for the number of
    /// elements and their size.
    ///
    /// For example, ranks compare large tensors by it without copying them to the host.
    ///
    /// ```
    /// use refrain::{DType, Device, Tensor};
    /// let x = Tensor::arange(0.0, 1000.0, 1.0, DType::F32, &Device::cpu())?;
    /// let y = x.copy()?;
    /// assert_eq!(x.checksum()?.to_scalar::<i64>()?, y.checksum()?.to_scalar::<i64>()?);
    /// y.narrow(0, 500, 1)?.fill(500.0001)?;
    /// assert_ne!(x.checksum()?.to_scalar::<i64>()?, y.checksum()?.to_scalar::<i64>()?);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the device fails.
    pub fn checksum(&self) -> Result<Tensor> {
        let mut sums = apply(Checksum, &[&self.detach()])?;
        while sums.numel() > 1 {
            sums = apply(Checksum, &[&sums])?;
        }
        if sums.numel() == 0 {
            return Tensor::zeros((), DType::I64, self.device());
        }
        sums.reshape(())
    }
}
