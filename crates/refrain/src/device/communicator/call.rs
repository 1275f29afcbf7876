//! What a collective does.

use std::fmt;

use crate::types::DType;

/// How the values of all ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their sum divided by the number of ranks. For floats.
    Mean,
}

/// A collective: what every rank must call alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectiveCall {
    AllReduce(ReduceOp),
    Broadcast {
        root: usize,
    },
    AllGather,
    ReduceScatter(ReduceOp),
    /// Waits until all ranks have come here.
    Barrier,
}

impl CollectiveCall {
    /// The name of the operation.
    pub(crate) fn name(self) -> &'static str {
        match self {
            CollectiveCall::AllReduce(_) => "all_reduce",
            CollectiveCall::Broadcast { .. } => "broadcast",
            CollectiveCall::AllGather => "all_gather",
            CollectiveCall::ReduceScatter(_) => "reduce_scatter",
            CollectiveCall::Barrier => "barrier",
        }
    }

    /// What must be the same on all ranks, as text. `elements` is the number of elements of the operand.
    pub(crate) fn describe(self, elements: usize, dtype: DType) -> String {
        let name = self.name();
        match self {
            CollectiveCall::AllReduce(op) | CollectiveCall::ReduceScatter(op) => {
                format!("{name} ({op} of {elements} {dtype})")
            }
            CollectiveCall::Broadcast { root } => format!("{name} ({elements} {dtype} of rank {root})"),
            CollectiveCall::AllGather => format!("{name} ({elements} {dtype} of each rank)"),
            CollectiveCall::Barrier => name.to_owned(),
        }
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Mean => "mean",
        })
    }
}
