//! What a kernel on CUDA is before it is compiled: its text, and the constants that it is specialised by.

use smallvec::SmallVec;

use crate::types::DType;

/// The text that every kernel begins with: element types, vectors, reductions, random numbers.
const PRELUDE: &str = include_str!("prelude.cu");

/// The text of what works with tensor cores, a part of kernels that do.
pub(crate) const MMA: &str = include_str!("mma.cu");

/// The text of what works with tensor cores by groups of warps, likewise.
pub(crate) const WGMMA: &str = include_str!("wgmma.cu");

/// The text of a family of kernels, by its parts in order. Each part is a `kernel.cu` or a piece shared
/// by several, without CUDA headers.
#[derive(Debug)]
pub(crate) struct Source {
    /// The file's name in compiler messages.
    pub(crate) name: &'static str,
    pub(crate) parts: &'static [&'static str],
}

/// The value of a constant in a kernel's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    /// An element type: `f32_t`, `bf16_t`, ..
    Type(DType),
    Int(i64),
    /// A name that the text gives a meaning to.
    Word(&'static str),
}

/// Names and values of constants, which become `#define`s.
pub(crate) type Constants = SmallVec<[(&'static str, Constant); 12]>;

/// A kernel, specialised. Never by the size of a batch: that is a parameter.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) source: &'static Source,
    /// The name of the `extern "C" __global__` function.
    pub(crate) entry: &'static str,
    pub(crate) constants: Constants,
}

impl PartialEq for Spec {
    fn eq(&self, other: &Spec) -> bool {
        std::ptr::eq(self.source, other.source)
            && self.entry == other.entry
            && self.constants == other.constants
    }
}
impl Eq for Spec {}

impl std::hash::Hash for Spec {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.source, state);
        self.entry.hash(state);
        self.constants.hash(state);
    }
}

impl Spec {
    pub(crate) fn new(source: &'static Source, entry: &'static str) -> Spec {
        Spec { source, entry, constants: Constants::new() }
    }

    /// Adds an element type. The text sees the type's name, and `NAME_SIZE`, its bytes.
    pub(crate) fn dtype(mut self, name: &'static str, dtype: DType) -> Spec {
        self.constants.push((name, Constant::Type(dtype)));
        self
    }

    pub(crate) fn int(mut self, name: &'static str, value: i64) -> Spec {
        self.constants.push((name, Constant::Int(value)));
        self
    }

    pub(crate) fn word(mut self, name: &'static str, value: &'static str) -> Spec {
        self.constants.push((name, Constant::Word(value)));
        self
    }

    pub(crate) fn flag(self, name: &'static str, value: bool) -> Spec {
        self.int(name, i64::from(value))
    }

    /// The whole text that the compiler gets.
    pub(crate) fn text(&self) -> String {
        use std::fmt::Write;
        let mut text = String::with_capacity(PRELUDE.len() + 8192);
        text.push_str(PRELUDE);
        for (name, value) in &self.constants {
            let _ = match value {
                Constant::Type(dtype) => {
                    writeln!(text, "#define {name} {dtype}_t\n#define {name}_SIZE {}", dtype.size())
                }
                Constant::Int(value) => writeln!(text, "#define {name} {value}"),
                Constant::Word(value) => writeln!(text, "#define {name} {value}"),
            };
        }
        for part in self.source.parts {
            text.push_str(part);
        }
        taking_turns(&text)
    }

    /// Name, entry and constants in one line, for errors and listings.
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

/// The text with what each of its kernels begins with.
fn taking_turns(text: &str) -> String {
    let mut kernels = text.split("\nKERNEL ");
    let mut whole = String::with_capacity(text.len() + 64);
    whole.push_str(kernels.next().unwrap_or_default());
    for kernel in kernels {
        // No parameter has braces.
        let (signature, body) = kernel.split_once('{').unwrap_or((kernel, ""));
        whole.extend(["\nKERNEL ", signature, "{ take_turn();", body]);
    }
    whole
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

/// The arguments of a kernel, in the order of its parameters.
#[derive(Default, Debug)]
pub(crate) struct Params {
    bytes: SmallVec<[u64; 32]>,
    /// Where each begins, in words of eight bytes.
    starts: SmallVec<[usize; 16]>,
}

impl Params {
    pub(crate) fn new() -> Params {
        Params::default()
    }

    fn word(mut self, word: u64) -> Params {
        self.starts.push(self.bytes.len());
        self.bytes.push(word);
        self
    }

    /// An address of device memory.
    pub(crate) fn pointer(self, address: u64) -> Params {
        self.word(address)
    }

    /// A `long long`.
    pub(crate) fn i64(self, value: i64) -> Params {
        self.word(value as u64)
    }

    /// A `long long` that counts something.
    pub(crate) fn size(self, value: usize) -> Params {
        self.word(value as u64)
    }

    /// An `int` (little-endian, as every device is).
    pub(crate) fn i32(self, value: i32) -> Params {
        self.word(u64::from(value as u32))
    }

    pub(crate) fn f64(self, value: f64) -> Params {
        self.word(value.to_bits())
    }

    /// A struct made of eight-byte members.
    pub(crate) fn words(mut self, words: &[u64]) -> Params {
        self.starts.push(self.bytes.len());
        self.bytes.extend_from_slice(words);
        self
    }

    /// The address of each argument.
    pub(super) fn addresses(&self) -> SmallVec<[*mut std::ffi::c_void; 16]> {
        self.starts.iter().map(|&start| (&raw const self.bytes[start]).cast_mut().cast()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static TWO: Source = Source {
        name: "two",
        parts: &[
            "KERNEL first(int x) {\n}\n",
            "KERNEL __launch_bounds__(32)\nsecond(const int* x,\n       int y) { if (y) {} }\n",
        ],
    };

    #[test]
    fn every_kernel_begins_with_waiting_for_its_turn() {
        let text = Spec::new(&TWO, "first").flag("X", true).text();
        assert!(text.contains("KERNEL first(int x) { take_turn();\n}"), "{text}");
        assert!(text.contains("int y) { take_turn(); if (y) {} }"), "{text}");
    }
}
