//! A CUDA kernel before it is compiled: its source, and the constants that it is specialised by.

use std::sync::Arc;

use smallvec::SmallVec;

use super::params::Declared;
use crate::types::DType;

/// The start of every kernel source: element types, vectors, reductions, random numbers.
const PRELUDE: &str = include_str!("prelude.cu");

/// The source for tensor cores. Kernels that use them include it.
pub(crate) const MMA: &str = include_str!("mma.cu");

/// The source for tensor cores with warp groups. Kernels that use them include it.
pub(crate) const WGMMA: &str = include_str!("wgmma.cu");

/// The source of a family of kernels: its parts in order. Each part is a `kernel.cu` or a piece that several share,
/// without CUDA headers.
#[derive(Debug)]
pub(crate) struct Source {
    /// The name of the file in compiler messages.
    pub(crate) name: &'static str,
    pub(crate) parts: &'static [&'static str],
}

/// The value of a constant in a kernel source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    /// An element type: `f32_t`, `bf16_t`, ..
    Type(DType),
    Int(i64),
    /// A name that the source defines.
    Word(&'static str),
}

/// Names and values of constants, which become `#define`s.
pub(crate) type Constants = SmallVec<[(&'static str, Constant); 12]>;

/// A specialised kernel. It is never specialised by the batch size, which is a parameter.
#[derive(Clone, Debug)]
pub(crate) struct KernelSpec {
    pub(crate) source: &'static Source,
    /// The name that the text gives the kernel by `KERNEL`.
    pub(crate) entry: &'static str,
    pub(crate) constants: Constants,
    /// What it is told.
    params: Option<Declared>,
    /// Text that was written for this kernel. It follows the source.
    generated: Option<Arc<str>>,
    /// Text that was written for this kernel and knows none of its constants. It comes before them.
    ahead: Option<Arc<str>>,
}

impl PartialEq for KernelSpec {
    fn eq(&self, other: &KernelSpec) -> bool {
        std::ptr::eq(self.source, other.source)
            && self.entry == other.entry
            && self.constants == other.constants
            && self.params == other.params
            && self.generated == other.generated
            && self.ahead == other.ahead
    }
}
impl Eq for KernelSpec {}

impl std::hash::Hash for KernelSpec {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.source, state);
        self.entry.hash(state);
        self.constants.hash(state);
        self.params.hash(state);
        self.generated.hash(state);
        self.ahead.hash(state);
    }
}

impl KernelSpec {
    pub(crate) fn new(source: &'static Source, entry: &'static str) -> KernelSpec {
        KernelSpec { source, entry, constants: Constants::new(), params: None, generated: None, ahead: None }
    }

    /// Adds an element type. The source sees its name, and `NAME_SIZE` with its size in bytes.
    pub(crate) fn dtype(mut self, name: &'static str, dtype: DType) -> KernelSpec {
        self.constants.push((name, Constant::Type(dtype)));
        self
    }

    pub(crate) fn int(mut self, name: &'static str, value: i64) -> KernelSpec {
        self.constants.push((name, Constant::Int(value)));
        self
    }

    pub(crate) fn word(mut self, name: &'static str, value: &'static str) -> KernelSpec {
        self.constants.push((name, Constant::Word(value)));
        self
    }

    pub(crate) fn flag(self, name: &'static str, value: bool) -> KernelSpec {
        self.int(name, i64::from(value))
    }

    /// With text that was written for this kernel, behind the source.
    pub(crate) fn generated(self, text: Arc<str>) -> KernelSpec {
        KernelSpec { generated: Some(text), ..self }
    }

    /// With text that was written for this kernel, before the constants and the source.
    pub(crate) fn ahead(self, text: Arc<str>) -> KernelSpec {
        KernelSpec { ahead: Some(text), ..self }
    }

    /// A kernel that is told a struct of this type.
    pub(super) fn told(self, params: Declared) -> KernelSpec {
        KernelSpec { params: Some(params), ..self }
    }

    /// The complete source for the compiler.
    pub(crate) fn text(&self) -> String {
        let mut text = String::with_capacity(PRELUDE.len() + 8192);
        text.push_str(PRELUDE);
        if let Some(ahead) = &self.ahead {
            text.push_str(ahead);
        }
        define(&mut text, &self.constants);
        if let Some(params) = &self.params {
            text.push_str(&params.text());
        }
        for part in self.source.parts {
            text.push_str(part);
        }
        if let Some(generated) = &self.generated {
            text.push_str(generated);
        }
        text
    }

    /// Source name, entry and constants in one line, for errors and listings.
    pub(crate) fn label(&self) -> String {
        use std::fmt::Write;
        let mut label = format!("{}:{}", self.source.name, self.entry);
        for (name, value) in &self.constants {
            let _ = match value {
                Constant::Type(dtype) => write!(label, " {name}={dtype}"),
                Constant::Int(value) => write!(label, " {name}={value}"),
                Constant::Word(value) => write!(label, " {name}={value}"),
            };
        }
        label
    }
}

/// Writes the `#define`s of constants.
pub(crate) fn define(text: &mut String, constants: &Constants) {
    use std::fmt::Write;
    for (name, value) in constants {
        let _ = match value {
            Constant::Type(dtype) => {
                writeln!(text, "#define {name} {dtype}_t\n#define {name}_SIZE {}", dtype.size())
            }
            Constant::Int(value) => writeln!(text, "#define {name} {value}"),
            Constant::Word(value) => writeln!(text, "#define {name} {value}"),
        };
    }
}

/// Takes the `#define`s of constants back, so that other text can have constants of the same names.
pub(crate) fn undefine(text: &mut String, constants: &Constants) {
    use std::fmt::Write;
    for (name, value) in constants {
        let _ = writeln!(text, "#undef {name}");
        if matches!(value, Constant::Type(_)) {
            let _ = writeln!(text, "#undef {name}_SIZE");
        }
    }
}

/// Blocks and threads of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: u32,
    /// Dynamic shared memory, in bytes.
    pub(crate) shared: u32,
}

impl Grid {
    /// A line of blocks.
    pub(crate) fn line(blocks: usize, threads: u32) -> Grid {
        Grid { blocks: [blocks.clamp(1, i32::MAX as usize) as u32, 1, 1], threads, shared: 0 }
    }

    pub(crate) fn shared(mut self, bytes: usize) -> Grid {
        self.shared = bytes as u32;
        self
    }
}
