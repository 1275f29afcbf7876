//! What a step keeps for inputs of one shape: a program, its inputs and its counters.

use std::cell::Cell;
use std::time::Duration;

use super::program::Program;
use super::replay::{Ahead, Ready};
use crate::autograd::{WatchedHistories, is_grad_enabled, with_grad_mode};
use crate::error::{Error, Result};
use crate::ops::random::Generator;
use crate::precision::{precision, with_precision};
use crate::recycled::emptied;
use crate::sync::MutexGuard;
use crate::tensor::Tensor;
use crate::types::Precision;

/// A program with its inputs and counters.
pub(super) struct ProgramEntry {
    /// The tensors that the program reads its inputs from.
    pub(super) inputs: Vec<Tensor>,
    pub(super) settings: ThreadSettings,
    /// Sorted, so that two steps never deadlock on each other's generators.
    pub(super) generators: Vec<Generator>,
    pub(super) run: RunMode,
    pub(super) outputs: Vec<Tensor>,
    /// What backward passes did at tensors from outside.
    pub(super) histories: WatchedHistories,
    pub(super) last_used: u64,
    /// How often it ran, and before which call the closure is recorded again.
    pub(super) calls: u64,
    /// Calls since the closure was last recorded for this program.
    pub(super) unchecked: u64,
    pub(super) check_at: u64,
    /// How long recording took.
    pub(super) cost: Duration,
}

/// The state of the calling thread that a recording depends on.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct ThreadSettings {
    grad_enabled: bool,
    precision: Precision,
}

impl ThreadSettings {
    pub(super) fn now() -> ThreadSettings {
        ThreadSettings { grad_enabled: is_grad_enabled(), precision: precision() }
    }

    pub(super) fn with<R>(self, f: impl FnOnce() -> R) -> R {
        with_precision(self.precision, || with_grad_mode(self.grad_enabled, f))
    }
}

/// How a program runs.
pub(super) enum RunMode {
    /// Not yet: its first call waits for the driver.
    Ahead(Box<Ahead>),
    Replay(Box<Ready>),
    /// By calling the closure, because the driver refused the graph for this reason.
    Eager(Error),
}

impl RunMode {
    /// `None` if the closure runs eagerly.
    pub(super) fn program(&self) -> Option<&Program> {
        match self {
            RunMode::Ahead(ahead) => Some(ahead.program()),
            RunMode::Replay(ready) => Some(ready.program()),
            RunMode::Eager(_) => None,
        }
    }
}

impl ProgramEntry {
    pub(super) fn fits(&self, inputs: &[Tensor], settings: ThreadSettings) -> bool {
        let same = |(a, b): (&Tensor, &Tensor)| a.shape() == b.shape() && a.dtype() == b.dtype();
        self.settings == settings
            && self.inputs.len() == inputs.len()
            && self.inputs.iter().zip(inputs).all(same)
    }
}

thread_local! {
    /// The memory of the last list of settled generators, so that a replay allocates nothing.
    static SETTLED: Cell<Vec<MutexGuard<'static, u64>>> = const { Cell::new(Vec::new()) };
}

/// Calls `f` with the generators settled; meanwhile nobody else draws from them.
pub(super) fn settled<R>(generators: &[Generator], f: impl FnOnce() -> Result<R>) -> Result<R> {
    let mut settled = emptied(SETTLED.try_with(Cell::take).unwrap_or_default());
    generators.iter().try_for_each(|generator| generator.settle().map(|guard| settled.push(guard)))?;
    let result = f();
    let _ = SETTLED.try_with(|kept| kept.set(emptied(settled)));
    result
}
