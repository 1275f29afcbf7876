//! What a kernel is told: one struct, declared once, by [`params!`] in Rust. The kernel's text gets its own declaration
//! from it, with assertions of its size and of where each member lies, so that the two sides can't differ.
//!
//! Operands are members too, by their numbers in the launch: addresses are put in their place when the kernel is
//! launched, and nothing else knows them.

use std::any::TypeId;
use std::fmt::Write as _;

use smallvec::SmallVec;

use crate::device::launch::{Launch, Operand};
use crate::error::{Error, Result};

/// Bytes of a word: members are made of words, so that there is no padding between them on either side.
const WORD: usize = 8;

/// Where an operand of a launch lies, or a place behind its beginning: a number, and no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Pointer(u64);

/// What a pointer points into, by the upper bits of its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    /// Nothing: the kernel gets 0.
    Nothing = 0,
    Read = 1,
    Write = 2,
    Workspace = 3,
    /// Where the kernels of a stream report indices out of range.
    Faults = 4,
    /// A number or an offset that a word has no room for.
    Beyond = 5,
}

impl Pointer {
    const OFFSET_BITS: u32 = 40;
    const NUMBER_BITS: u32 = 20;

    /// What a kernel does without.
    pub(crate) const NOTHING: Pointer = Pointer(0);
    pub(crate) const WORKSPACE: Pointer = Pointer::of(Slot::Workspace, 0, 0);
    pub(super) const FAULTS: Pointer = Pointer::of(Slot::Faults, 0, 0);

    const fn of(slot: Slot, number: usize, offset: usize) -> Pointer {
        if number >= 1 << Pointer::NUMBER_BITS || offset >= 1 << Pointer::OFFSET_BITS {
            return Pointer((Slot::Beyond as u64) << (Pointer::OFFSET_BITS + Pointer::NUMBER_BITS));
        }
        let upper = (slot as u64) << Pointer::NUMBER_BITS | number as u64;
        Pointer(upper << Pointer::OFFSET_BITS | offset as u64)
    }

    pub(crate) const fn read(i: usize) -> Pointer {
        Pointer::of(Slot::Read, i, 0)
    }

    pub(crate) const fn write(o: usize) -> Pointer {
        Pointer::of(Slot::Write, o, 0)
    }

    /// So many bytes behind this one.
    pub(crate) const fn plus(self, bytes: usize) -> Pointer {
        match self.slot() {
            Slot::Nothing => self,
            slot => Pointer::of(slot, self.number(), self.offset().saturating_add(bytes)),
        }
    }

    const fn slot(self) -> Slot {
        match self.0 >> (Pointer::OFFSET_BITS + Pointer::NUMBER_BITS) {
            0 => Slot::Nothing,
            1 => Slot::Read,
            2 => Slot::Write,
            3 => Slot::Workspace,
            4 => Slot::Faults,
            _ => Slot::Beyond,
        }
    }

    /// The same place in an operand of another launch: in `reads[i]` instead of read operand `i`, in `writes[o]` instead of
    /// output `o`. `None` if one is missing.
    pub(crate) fn moved(self, reads: &[Pointer], writes: &[Pointer]) -> Option<Pointer> {
        match self.slot() {
            Slot::Read => reads.get(self.number()).map(|to| to.plus(self.offset())),
            Slot::Write => writes.get(self.number()).map(|to| to.plus(self.offset())),
            Slot::Nothing | Slot::Workspace | Slot::Faults | Slot::Beyond => Some(self),
        }
    }

    pub(crate) const fn number(self) -> usize {
        (self.0 >> Pointer::OFFSET_BITS) as usize & ((1 << Pointer::NUMBER_BITS) - 1)
    }

    /// Bytes from the operand's first element.
    pub(super) const fn offset(self) -> usize {
        self.0 as usize & ((1 << Pointer::OFFSET_BITS) - 1)
    }

    /// The operand that it points into, if it is one that the launch has.
    pub(super) fn operand<'a>(self, launch: &'a Launch<'a>) -> Option<&'a Operand<'a>> {
        match self.slot() {
            Slot::Read => launch.reads.get(self.number()),
            Slot::Write => launch.writes.get(self.number()).map(|(operand, _)| operand),
            Slot::Workspace => launch.workspace.as_ref(),
            Slot::Nothing | Slot::Faults | Slot::Beyond => None,
        }
    }
}

/// Numbers for addresses: where the operands of a launch lie.
pub(super) struct Addresses<'a> {
    pub(super) launch: &'a Launch<'a>,
    /// Where its kernels report.
    pub(super) faults: u64,
    /// Whether kernels are only looked at, so that working memory is not there.
    pub(super) looks: bool,
}

impl Addresses<'_> {
    /// # Errors
    /// For an operand that the launch does not have, and a place beyond its end.
    pub(super) fn of(&self, pointer: Pointer) -> Result<u64> {
        let missing = || {
            Error::internal(self.launch.op, format!("its kernel asks for {pointer:?}, which is not there"))
        };
        match pointer.slot() {
            Slot::Nothing => Ok(0),
            Slot::Faults => Ok(self.faults),
            Slot::Workspace if self.looks => Ok(0),
            // Where nothing needs working memory there is none.
            Slot::Workspace if self.launch.workspace.is_none() && pointer.offset() == 0 => Ok(0),
            _ => {
                let operand = pointer.operand(self.launch).ok_or_else(missing)?;
                if pointer.offset() > operand.byte_range().len() {
                    return Err(missing());
                }
                Ok(operand.address() + pointer.offset() as u64)
            }
        }
    }
}

/// The words of a struct as a kernel gets it.
pub(crate) struct Words<'a> {
    addresses: Addresses<'a>,
    words: SmallVec<[u64; 72]>,
    error: Option<Error>,
}

impl<'a> Words<'a> {
    /// Those of `params`.
    pub(super) fn of(addresses: Addresses<'a>, params: &dyn Put) -> Result<SmallVec<[u64; 72]>> {
        let mut words = Words { addresses, words: SmallVec::new(), error: None };
        params.put(&mut words);
        words.error.map_or(Ok(words.words), Err)
    }
}

/// What goes word by word to a kernel.
pub(crate) trait Put {
    fn put(&self, words: &mut Words<'_>);

    /// One after the other. It is compiled once for all lengths.
    #[inline(never)]
    fn put_all(all: &[Self], words: &mut Words<'_>)
    where
        Self: Sized,
    {
        all.iter().for_each(|x| x.put(words));
    }
}

/// What a kernel can be told, alone or as a member of a struct.
pub(crate) trait Member: Put + Copy {
    /// Its type in the text.
    const TYPE: &'static str;
    const WORDS: usize;

    /// How many there are, behind a member's name: `[4]`.
    fn extents() -> String {
        String::new()
    }

    /// Declares what it is made of.
    fn declare(_: &mut Declarations) {}
}

macro_rules! numbers {
    ($($type:ty = $text:literal, $word:expr;)*) => {$(
        impl Put for $type {
            fn put(&self, words: &mut Words<'_>) {
                let word: fn($type) -> u64 = $word;
                words.words.push(word(*self));
            }
        }

        impl Member for $type {
            const TYPE: &'static str = $text;
            const WORDS: usize = 1;
        }
    )*};
}

numbers! {
    i64 = "i64", |x| x as u64;
    u64 = "u64", |x| x;
    f64 = "double", f64::to_bits;
}

impl Put for Pointer {
    fn put(&self, words: &mut Words<'_>) {
        match words.addresses.of(*self) {
            Ok(address) => words.words.push(address),
            Err(error) => {
                words.error.get_or_insert(error);
            }
        }
    }
}

impl Member for Pointer {
    const TYPE: &'static str = "u64";
    const WORDS: usize = 1;
}

impl<T: Put, const N: usize> Put for [T; N] {
    fn put(&self, words: &mut Words<'_>) {
        T::put_all(self, words);
    }
}

impl<T: Member, const N: usize> Member for [T; N] {
    const TYPE: &'static str = T::TYPE;
    const WORDS: usize = N * T::WORDS;

    fn extents() -> String {
        format!("[{N}]{}", T::extents())
    }

    fn declare(declarations: &mut Declarations) {
        T::declare(declarations);
    }
}

/// A member of a struct, as the kernel's text declares it.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) of_type: &'static str,
    /// How many there are, behind the name.
    pub(crate) extents: fn() -> String,
    pub(crate) words: usize,
    /// Where it lies in the struct of Rust, in bytes.
    pub(crate) offset: usize,
}

/// The declarations of structs in a kernel's text.
#[derive(Default)]
pub(crate) struct Declarations {
    text: String,
    declared: Vec<TypeId>,
}

impl Declarations {
    /// Declares the struct `name` of members that lie one behind the other, unless it was declared before. Arrays of no
    /// elements are left out.
    pub(crate) fn declare(&mut self, id: TypeId, name: &str, fields: &[Field]) {
        if self.declared.contains(&id) {
            return;
        }
        self.declared.push(id);
        let (text, mut asserted, mut size) = (&mut self.text, String::new(), 0);
        let _ = writeln!(text, "struct {name} {{");
        for field in fields.iter().filter(|field| field.words > 0) {
            let (member, bytes) = (field.name, field.words * WORD);
            let _ = writeln!(text, "    {} {member}{};", field.of_type, (field.extents)());
            let _ = writeln!(
                asserted,
                "static_assert(sizeof({name}::{member}) == {bytes}, \"{name}::{member}\");"
            );
            // Words have no padding between them, so with the order of members and their sizes the offsets are the same.
            debug_assert_eq!(size, field.offset, "{name}::{member} lies elsewhere in the struct of Rust");
            size += bytes;
        }
        let _ = writeln!(text, "}};\nstatic_assert(sizeof({name}) == {size}, \"{name}\");\n{asserted}");
    }
}

/// A type of struct that a kernel is told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declared {
    id: TypeId,
    declare: fn(&mut Declarations),
}

impl Declared {
    pub(super) fn of<P: Member + 'static>() -> Declared {
        Declared { id: TypeId::of::<P>(), declare: P::declare }
    }

    /// Its declaration, and those of what it is made of.
    pub(super) fn text(&self) -> String {
        let mut declarations = Declarations::default();
        (self.declare)(&mut declarations);
        declarations.text
    }
}

impl PartialEq for Declared {
    fn eq(&self, other: &Declared) -> bool {
        self.id == other.id
    }
}
impl Eq for Declared {}

impl std::hash::Hash for Declared {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// Declares a struct that a kernel is told: here and, when the kernel is compiled, in its text. Members are [`Pointer`]s,
/// `i64`, `u64`, `f64`, arrays of them and other such structs. A type of the text can follow a pointer, which is an `u64`
/// there else:
///
/// ```ignore
/// params! {
///     /// A row for each block.
///     struct Rows {
///         x: Pointer = "const IN*",
///         /// Elements of a row.
///         width: i64,
///     }
/// }
/// ```
macro_rules! params {
    (@type $type:ty) => {
        <$type as $crate::device::cuda::Member>::TYPE
    };
    (@type $type:ty, $own:literal) => {
        $own
    };
    ($($(#[$meta:meta])* $vis:vis struct $name:ident $(<$(const $size:ident: usize),+>)? {
        $($(#[$doc:meta])* $field:ident: $type:ty $(= $own:literal)?,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        $vis struct $name $(<$(const $size: usize),+>)? {
            $($(#[$doc])* $vis $field: $type,)*
        }

        impl $(<$(const $size: usize),+>)? $crate::device::cuda::Put for $name $(<$($size),+>)? {
            fn put(&self, words: &mut $crate::device::cuda::Words<'_>) {
                $($crate::device::cuda::Put::put(&self.$field, words);)*
            }
        }

        impl $(<$(const $size: usize),+>)? $crate::device::cuda::Member for $name $(<$($size),+>)? {
            const TYPE: &'static str = stringify!($name);
            const WORDS: usize = 0 $(+ <$type as $crate::device::cuda::Member>::WORDS)*;

            fn declare(declarations: &mut $crate::device::cuda::Declarations) {
                const { assert!(size_of::<Self>() == 8 * <Self as $crate::device::cuda::Member>::WORDS, "members are made of words") };
                $(<$type as $crate::device::cuda::Member>::declare(declarations);)*
                declarations.declare(
                    std::any::TypeId::of::<Self>(),
                    <Self as $crate::device::cuda::Member>::TYPE,
                    &[$($crate::device::cuda::Field {
                        name: stringify!($field),
                        of_type: $crate::device::cuda::params!(@type $type $(, $own)?),
                        extents: <$type as $crate::device::cuda::Member>::extents,
                        words: <$type as $crate::device::cuda::Member>::WORDS,
                        offset: std::mem::offset_of!(Self, $field),
                    }),*],
                );
            }
        }
    )*};
}
pub(crate) use params;

/// `values` as the last of so many members, `fill` before them.
pub(crate) fn padded<const N: usize>(values: &[usize], fill: i64) -> [i64; N] {
    debug_assert!(values.len() <= N);
    let padding = N.saturating_sub(values.len());
    std::array::from_fn(|i| i.checked_sub(padding).and_then(|i| values.get(i)).map_or(fill, |&v| v as i64))
}

/// Calls a body with a number of axes as a constant, of which structs have a length: 1, 2, 4, .. 64.
macro_rules! with_rank {
    ($op:expr, $rank:expr, $RANK:ident => $body:expr) => {
        $crate::device::cuda::with_rank!(@each $op, $rank, $RANK => $body; 1 2 4 8 16 32 64)
    };
    (@each $op:expr, $rank:expr, $RANK:ident => $body:expr; $($n:literal)*) => {
        match $rank {
            $($n => {
                const $RANK: usize = $n;
                $body
            })*
            rank => Err($crate::error::Error::invalid(
                $op,
                format!("{rank} axes that do not follow each other in memory; a GPU's kernel takes 64 at most: make the operands contiguous first"),
            )),
        }
    };
}
pub(crate) use with_rank;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cuda::{CudaArgs, Gpu, Reporter};
    use crate::device::launch::{Kernel, Mode};
    use crate::device::{Device, HostArgs};
    use crate::tensor::Tensor;
    use crate::types::{DType, Shape};

    params! {
        struct Inner {
            first: f64,
            second: i64,
        }

        struct Outer<const N: usize> {
            x: Pointer = "const IN*",
            y: Pointer,
            inner: Inner,
            other: Inner,
            sizes: [i64; N],
            strides: [[u64; N]; 3],
            faults: Reporter,
        }
    }

    #[test]
    fn the_text_declares_what_the_struct_is_and_asserts_it() {
        let text = Declared::of::<Outer<2>>().text();
        let expected = "struct Inner {
    double first;
    i64 second;
};
static_assert(sizeof(Inner) == 16, \"Inner\");
static_assert(sizeof(Inner::first) == 8, \"Inner::first\");
static_assert(sizeof(Inner::second) == 8, \"Inner::second\");
";
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(text.matches("struct Inner {").count(), 1);
        for part in [
            "struct Outer {\n    const IN* x;\n    u64 y;\n    Inner inner;\n    Inner other;\n    i64 sizes[2];\n    u64 strides[3][2];\n    Reporter faults;\n};",
            "static_assert(sizeof(Outer) == 128, \"Outer\");",
            "static_assert(sizeof(Outer::strides) == 48, \"Outer::strides\");",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert_ne!(Declared::of::<Outer<2>>(), Declared::of::<Outer<4>>());
    }

    #[test]
    fn a_pointer_is_a_number_and_an_offset_and_never_silently_another() {
        let far = Pointer::read(3).plus(5).plus(1 << 30);
        assert_eq!((far.slot(), far.number(), far.offset()), (Slot::Read, 3, (1 << 30) + 5));
        assert_eq!(Pointer::NOTHING.plus(8), Pointer::NOTHING);
        for beyond in
            [Pointer::read(1 << 20), Pointer::write(0).plus(1 << 40), Pointer::WORKSPACE.plus(usize::MAX)]
        {
            assert_eq!(beyond.slot(), Slot::Beyond);
            assert_eq!(beyond.plus(1).slot(), Slot::Beyond);
        }
    }

    struct Nothing;

    impl Kernel for Nothing {
        fn host(&self, _: &mut HostArgs<'_>) -> Result<()> {
            Ok(())
        }

        fn cuda(&self, _: &mut CudaArgs<'_>) -> Result<()> {
            Ok(())
        }

        fn can_fail(&self) -> bool {
            false
        }

        fn cuda_workspace(&self, _: &Launch<'_>, _: &dyn Gpu) -> Result<usize> {
            Ok(0)
        }

        fn flops(&self, _: &[&Shape], _: &[&Shape]) -> u64 {
            0
        }

        fn boxed(&self) -> Box<dyn Kernel> {
            Box::new(Nothing)
        }

        fn parameters(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn numbers_become_the_addresses_of_what_the_launch_has_and_errors_else() {
        let device = Device::cpu();
        let [x, y] = [8, 4].map(|n| Tensor::zeros([n], DType::F32, &device).unwrap());
        let half = x.narrow(0, 4, 4).unwrap();
        let [x_at, y_at] = [&x, &y].map(|t| t.storage().block().address as u64);
        fn view(t: &Tensor) -> Operand<'_> {
            Operand { storage: t.storage(), layout: t.layout(), dtype: t.dtype() }
        }
        let (reads, writes) = ([view(&half)], [(view(&y), Mode::Replace)]);
        let launch = Launch { op: "none", kernel: &Nothing, reads: &reads, writes: &writes, workspace: None };
        let words = |pointers: [Pointer; 2]| {
            Words::of(Addresses { launch: &launch, faults: 64, looks: false }, &pointers)
        };
        let found = words([Pointer::read(0).plus(4), Pointer::write(0)]).unwrap();
        assert_eq!(found[..], [x_at + 20, y_at]);
        assert_eq!(words([Pointer::NOTHING, Pointer::FAULTS]).unwrap()[..], [0, 64]);
        for missing in
            [Pointer::read(1), Pointer::write(1), Pointer::read(0).plus(17), Pointer::WORKSPACE.plus(1)]
        {
            assert!(
                matches!(words([missing, missing]), Err(Error::Internal { op: "none", .. })),
                "{missing:?}"
            );
        }
    }

    #[test]
    fn what_is_padded_comes_last() {
        assert_eq!(padded::<4>(&[5, 6], 1), [1, 1, 5, 6]);
        assert_eq!(padded::<2>(&[5, 6], 1), [5, 6]);
        assert_eq!(padded::<1>(&[], 7), [7]);
    }
}
