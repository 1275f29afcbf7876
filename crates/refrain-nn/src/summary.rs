//! A model as a table.

use std::fmt;

use refrain::{DType, Shape};

use crate::parameters::{Entry, Group, Parameters};

/// A table of the layers (the part of the names before the last dot), their parameters and buffers, with shapes and numbers
/// of elements; then the sums. A group that is not the one in which a parameter begins is told behind it.
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
/// parameters.set_group(|name, _| name == "hidden.weight", |group| group.rate_factor = 0.1)?;
/// assert_eq!(
///     parameters.to_string(),
///     "\
/// layer   name          shape      elements
/// hidden  weight        [200, 10]      2000  learning rate x 0.1
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
            match line.notes.join(", ") {
                notes if notes.is_empty() => writeln!(f)?,
                notes => writeln!(f, "  {notes}")?,
            }
            before = Some(own.clone());
        }
        let sum = |of: &dyn Fn(&Line) -> bool| lines.iter().filter(|l| of(l)).map(|l| l.numel).sum::<usize>();
        let [frozen, buffers] = [FROZEN, BUFFER].map(|note| sum(&|l| l.notes.iter().any(|n| n == note)));
        let parameters = lines.iter().map(|l| l.numel).sum::<usize>() - buffers;
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
    notes: Vec<String>,
}

/// What differs from the group in which a parameter begins.
fn notes(entry: &Entry) -> Vec<String> {
    let (group, first) = (entry.group(), Group::of_rank(entry.tensor.rank()));
    let factor = |name: &str, now: f64, first: f64| (now != first).then(|| format!("{name} x {now}"));
    let frozen = (!group.trainable).then(|| FROZEN.to_owned());
    let rate = factor("learning rate", group.rate_factor, first.rate_factor);
    let decay = factor("weight decay", group.decay_factor, first.decay_factor);
    [frozen, rate, decay].into_iter().flatten().collect()
}

/// The parameters in the order of declaration, each layer's buffers after its parameters.
fn lines(parameters: &Parameters) -> Vec<Line> {
    let line = |name: &str, shape: &Shape, notes| {
        let (layer, own) = name.rsplit_once('.').unwrap_or(("", name));
        let cells = [layer.to_owned(), own.to_owned(), shape.to_string(), shape.numel().to_string()];
        Line { cells, numel: shape.numel(), notes }
    };
    let entries = parameters.entries().iter();
    let mut all: Vec<Line> = entries.map(|e| line(&e.name, e.tensor.shape(), notes(e))).collect();
    for (name, tensor) in parameters.buffers() {
        let buffer = line(name, tensor.shape(), vec![BUFFER.to_owned()]);
        let at = all
            .iter()
            .rposition(|other| other.cells[0] == buffer.cells[0])
            .map_or(all.len(), |last| last + 1);
        all.insert(at, buffer);
    }
    all
}
