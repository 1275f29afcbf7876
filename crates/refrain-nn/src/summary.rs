//! A model as a table.

use std::fmt;

use refrain::{DType, Shape};

use crate::parameters::Parameters;

/// A table of the layers (the part of the names before the last dot), their parameters and buffers, with shapes and numbers
/// of elements; then the sums.
///
/// ```
/// # use refrain::{DType, Device, Generator};
/// # use refrain_nn::{BatchNorm, Linear, ParameterBuilder};
/// # let device = Device::cpu();
/// # let builder = ParameterBuilder::new(&device, DType::F32);
/// # Linear::new(&builder.scope("hidden"), 10, 200)?;
/// # BatchNorm::new(&builder.scope("norm"), 200, 1, 1e-5, 0.1)?;
/// # let mut parameters = builder.build(&Generator::new(&device, 0)?)?;
/// parameters.set_group(|name, _| name == "norm.bias", |group| group.trainable = false)?;
/// assert_eq!(
///     parameters.to_string(),
///     "\
/// layer   name          shape      elements
/// hidden  weight        [200, 10]      2000
///         bias          [200]           200
/// norm    weight        [200]           200
///         bias          [200]           200  frozen
///         running_mean  [200]           200  buffer
///         running_var   [200]           200  buffer
/// 2600 parameters (200 frozen) and 400 elements of buffers, f32: 12000 bytes
/// "
/// );
/// # Ok::<(), refrain_nn::Error>(())
/// ```
impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = lines(self);
        let header = ["layer", "name", "shape", "elements"];
        let width = |column: usize| {
            let cells = lines.iter().map(|line| line.cells[column].chars().count());
            cells.max().unwrap_or(0).max(header[column].len())
        };
        let [layer, name, shape, elements] = [0, 1, 2, 3].map(width);
        writeln!(
            f,
            "{:layer$}  {:name$}  {:shape$}  {:>elements$}",
            header[0], header[1], header[2], header[3]
        )?;
        let mut before = None;
        for line in &lines {
            let [own, rest @ ..] = &line.cells;
            // A layer is named once.
            let first = if before.as_ref() == Some(own) { "" } else { own.as_str() };
            write!(f, "{first:layer$}  {:name$}  {:shape$}  {:>elements$}", rest[0], rest[1], rest[2])?;
            match line.note {
                "" => writeln!(f)?,
                note => writeln!(f, "  {note}")?,
            }
            before = Some(own.clone());
        }
        let sum = |of: &dyn Fn(&Line) -> bool| lines.iter().filter(|l| of(l)).map(|l| l.numel).sum::<usize>();
        let (frozen, buffers) = (sum(&|l| l.note == FROZEN), sum(&|l| l.note == BUFFER));
        let parameters = sum(&|l| l.note != BUFFER);
        let dtype: DType = self.values().dtype();
        write!(f, "{parameters} parameters")?;
        if frozen > 0 {
            write!(f, " ({frozen} frozen)")?;
        }
        if buffers > 0 {
            write!(f, " and {buffers} elements of buffers")?;
        }
        writeln!(f, ", {dtype}: {} bytes", (parameters + buffers) * dtype.size())
    }
}

const FROZEN: &str = "frozen";
const BUFFER: &str = "buffer";

struct Line {
    /// Layer, name, shape, elements.
    cells: [String; 4],
    numel: usize,
    note: &'static str,
}

/// The parameters in the order of declaration, each layer's buffers after its parameters.
fn lines(parameters: &Parameters) -> Vec<Line> {
    let line = |name: &str, shape: &Shape, note| {
        let (layer, own) = name.rsplit_once('.').unwrap_or(("", name));
        let cells = [layer.to_owned(), own.to_owned(), shape.to_string(), shape.numel().to_string()];
        Line { cells, numel: shape.numel(), note }
    };
    let entries = parameters.entries().iter();
    let mut all: Vec<Line> = entries
        .map(|e| line(&e.name, e.tensor.shape(), if e.segment.trainable { "" } else { FROZEN }))
        .collect();
    for (name, tensor) in parameters.buffers() {
        let buffer = line(name, tensor.shape(), BUFFER);
        let at = all
            .iter()
            .rposition(|other| other.cells[0] == buffer.cells[0])
            .map_or(all.len(), |last| last + 1);
        all.insert(at, buffer);
    }
    all
}
