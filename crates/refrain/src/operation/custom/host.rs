//! The kernel of a user's operation on the CPU.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytemuck::Pod;
use smallvec::SmallVec;

use crate::device::HostArgs;
use crate::error::{Error, Result};
use crate::tensor::{DType, Element, Shape};

/// An element type that kernels get slices of: `f64`, `f32`, [`struct@f16`](crate::f16), [`struct@bf16`](crate::bf16),
/// `i64`, `i32` and `u8`. Elements of a bool tensor are bytes (`u8`), 0 for false and 1 for true; of a result,
/// every byte that is not 0 becomes 1.
pub trait KernelElement: Element + Pod {}

impl<T: Element + Pod> KernelElement for T {}

/// The operands and results of one launch, as slices. [`CustomOp::host`](super::CustomOp::host) gets them.
///
/// The methods take the number of an operand or a result, from 0. A number or an element type that does not fit is an error.
/// The slices can be shared with the threads of `rayon`; this struct can't.
pub struct HostOperands<'a> {
    args: &'a HostArgs<'a>,
    /// Bit `o` is set when result `o` was given out.
    given: Cell<u32>,
    /// The elements of bool results that were not given out yet.
    bools: RefCell<Bools<'a>>,
}

/// The results that are bools, by number.
type Bools<'a> = SmallVec<[(usize, &'a mut [u8]); 2]>;

impl<'a> HostOperands<'a> {
    /// The elements of a contiguous operand, in row-major order. Operands are contiguous unless
    /// [`CustomOp::takes_strides`](super::CustomOp::takes_strides) says otherwise.
    pub fn operand<T: KernelElement>(&self, i: usize) -> Result<&'a [T]> {
        self.check::<T>("operand", i, self.operand_dtype(i)?)?;
        if !self.args.read_layout(i).is_contiguous() {
            let message = format!("operand {i} has strides; read it with strided_operand({i})");
            return Err(self.misuse(message));
        }
        self.args.read(i)
    }

    /// The memory of an operand from its first element to its last, and the stride of each axis, in elements: element
    /// `[i, j]` is at `i * strides[0] + j * strides[1]`. A stride of 0 repeats an element along the axis (a broadcast view).
    pub fn strided_operand<T: KernelElement>(&self, i: usize) -> Result<(&'a [T], &'a [usize])> {
        self.check::<T>("operand", i, self.operand_dtype(i)?)?;
        Ok((self.args.read(i)?, self.args.read_layout(i).strides()))
    }

    /// The elements of a result, in row-major order. They have no defined values: the kernel writes all of them. Each result
    /// is given out once.
    pub fn result<T: KernelElement>(&self, o: usize) -> Result<&'a mut [T]> {
        self.check::<T>("result", o, self.result_dtype(o)?)?;
        if self.given.get() >> o & 1 == 1 {
            return Err(self.misuse(format!("result {o} was asked for twice; keep the slice")));
        }
        self.given.set(self.given.get() | 1 << o);
        let mut bools = self.bools.borrow_mut();
        match bools.iter().position(|(of, _)| *of == o) {
            Some(at) => Ok(bytemuck::cast_slice_mut(bools.swap_remove(at).1)),
            None => self.args.write(o),
        }
    }

    /// The shape of an operand.
    pub fn operand_shape(&self, i: usize) -> Result<&'a Shape> {
        self.present("operand", i, self.args.reads()).map(|()| self.args.read_shape(i))
    }

    /// The dtype of an operand.
    pub fn operand_dtype(&self, i: usize) -> Result<DType> {
        self.present("operand", i, self.args.reads()).map(|()| self.args.read_dtype(i))
    }

    /// The shape of a result.
    pub fn result_shape(&self, o: usize) -> Result<&'a Shape> {
        self.present("result", o, self.results()).map(|()| self.args.write_shape(o))
    }

    /// The dtype of a result.
    pub fn result_dtype(&self, o: usize) -> Result<DType> {
        self.present("result", o, self.results()).map(|()| self.args.write_dtype(o))
    }

    fn results(&self) -> usize {
        self.args.launch().writes.len()
    }

    fn misuse(&self, message: String) -> Error {
        Error::Kernel { op: self.args.op(), message: format!("the host kernel: {message}") }
    }

    fn present(&self, what: &str, at: usize, count: usize) -> Result<()> {
        if at < count {
            return Ok(());
        }
        Err(self.misuse(format!("there is no {what} {at}; the operation has {count}, counted from 0")))
    }

    fn check<T: KernelElement>(&self, what: &str, at: usize, dtype: DType) -> Result<()> {
        if T::DTYPE == dtype || (T::DTYPE, dtype) == (DType::U8, DType::Bool) {
            return Ok(());
        }
        let own = if dtype == DType::Bool { "u8" } else { dtype.name() };
        Err(self.misuse(format!("{what} {at} is {dtype}, not {}; ask for elements of {own}", T::DTYPE)))
    }
}

/// Runs a user's kernel. A panic of it becomes an error, and so does a result that it did not ask for. A bool that is not 0
/// becomes 1.
pub(super) fn run(args: &HostArgs<'_>, kernel: impl FnOnce(&HostOperands<'_>) -> Result<()>) -> Result<()> {
    let results = 0..args.launch().writes.len();
    let bools = results.filter(|&o| args.write_dtype(o) == DType::Bool).map(|o| Ok((o, args.write(o)?)));
    let mut bools = bools.collect::<Result<Bools<'_>>>()?;
    run_on(args, &mut bools, kernel)?;
    for (_, bools) in bools {
        bools.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    Ok(())
}

fn run_on<'a>(
    args: &'a HostArgs<'a>,
    bools: &'a mut Bools<'_>,
    kernel: impl FnOnce(&HostOperands<'_>) -> Result<()>,
) -> Result<()> {
    let bools = bools.iter_mut().map(|(o, bools)| (*o, &mut **bools)).collect();
    let operands = HostOperands { args, given: Cell::new(0), bools: RefCell::new(bools) };
    // A kernel that has panicked leaves nothing behind but undefined values in its results, which an error leaves, too.
    let done = catch_unwind(AssertUnwindSafe(|| kernel(&operands)));
    done.unwrap_or_else(|panic| {
        Err(Error::Kernel {
            op: args.op(),
            message: format!("the host kernel panicked: {}", text_of(&*panic)),
        })
    })?;
    let unwritten = |&o: &usize| operands.given.get() >> o & 1 == 0 && args.write_shape(o).numel() > 0;
    match (0..operands.results()).find(unwritten) {
        None => Ok(()),
        Some(o) => {
            Err(operands.misuse(format!("it did not ask for result {o}, so nothing was written there")))
        }
    }
}

/// What a panic says.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
