//! Sums of products in Einstein's notation, composed of views, products and sums.

use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::tensor::{DType, Dims, Shape, Tensor};

const OP: &str = "einsum";

/// A subscript: a letter, or a place of an ellipsis, counted from its right end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Letter(char),
    Ellipsis(usize),
}

type Labels = SmallVec<[Label; 8]>;

fn refuse<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::invalid(OP, message))
}

/// The labels of an operand, or of the result, of `rank` dimensions. Without a rank, the ellipsis stands for `ellipsis` ones.
fn parse(subscripts: &str, rank: Option<usize>, ellipsis: usize) -> Result<Labels> {
    let text: String = subscripts.chars().filter(|c| !c.is_whitespace()).collect();
    let letters = text.replacen("...", "", 1);
    if let Some(c) = letters.chars().find(|c| !c.is_ascii_alphabetic()) {
        return refuse(format!(
            "{c:?} in {text:?} is no subscript; use letters, and `...` once for the other dimensions"
        ));
    }
    let ellipsis = match (rank, text.contains("...")) {
        (Some(rank), true) if rank >= letters.len() => rank - letters.len(),
        (Some(rank), _) if rank != letters.len() => {
            return refuse(format!(
                "{text:?} names {} dimensions of an operand that has {rank}",
                letters.len()
            ));
        }
        (_, has_ellipsis) => {
            if has_ellipsis {
                ellipsis
            } else {
                0
            }
        }
    };
    let mut labels = Labels::new();
    let mut rest = text.as_str();
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            labels.extend((0..ellipsis).rev().map(Label::Ellipsis));
            rest = after;
        } else {
            labels.push(Label::Letter(c));
            rest = &rest[1..];
        }
    }
    Ok(labels)
}

/// A tensor whose dimensions have labels, each another one.
struct Term {
    tensor: Tensor,
    labels: Labels,
}

impl Term {
    /// Takes the diagonal over dimensions with one label.
    fn new(mut tensor: Tensor, mut labels: Labels) -> Result<Term> {
        while let Some((i, j)) = repeated(&labels) {
            let n = tensor.dims()[i];
            let order: Vec<isize> =
                (0..labels.len()).filter(|&d| d != i && d != j).chain([i, j]).map(|d| d as isize).collect();
            let rest = &tensor.permute(&order)?;
            let shape: Dims = rest.dims()[..order.len() - 2].iter().copied().chain([n * n]).collect();
            let places = Tensor::arange(0.0, (n * n) as f64, (n + 1) as f64, DType::I64, tensor.device())?;
            tensor = rest.reshape(Shape::from(&shape[..]))?.index_select(-1, &places)?;
            labels = order[..order.len() - 1].iter().map(|&d| labels[d as usize]).collect();
        }
        Ok(Term { tensor, labels })
    }

    fn size(&self, label: Label) -> Option<usize> {
        self.labels.iter().position(|&l| l == label).map(|i| self.tensor.dims()[i])
    }

    /// Sums over all labels but those to keep.
    fn keep(self, keep: impl Fn(Label) -> bool) -> Result<Term> {
        let axes: Vec<isize> =
            (0..self.labels.len()).filter(|&i| !keep(self.labels[i])).map(|i| i as isize).collect();
        if axes.is_empty() {
            return Ok(self);
        }
        let labels = self.labels.iter().copied().filter(|&l| keep(l)).collect();
        Ok(Term { tensor: self.tensor.sum(&axes[..])?, labels })
    }

    /// The tensor with its dimensions in the order of `labels`, of size 1 where it has none.
    fn in_order(&self, labels: impl Iterator<Item = Label> + Clone) -> Result<Tensor> {
        let place = |label| self.labels.iter().position(|&l| l == label);
        let order: Vec<isize> = labels.clone().filter_map(place).map(|i| i as isize).collect();
        let shape: Dims = labels.map(|l| self.size(l).unwrap_or(1)).collect();
        self.tensor.permute(&order)?.reshape(Shape::from(&shape[..]))
    }

    /// The product of two terms, summed over the labels that only these two have.
    fn times(self, other: Term, is_needed: impl Fn(Label) -> bool) -> Result<Term> {
        let a = self.keep(|l| is_needed(l) || other.labels.contains(&l))?;
        let b = other.keep(|l| is_needed(l) || a.labels.contains(&l))?;
        let both = |l: &Label| b.labels.contains(l);
        let of = |pick: &dyn Fn(&Label) -> bool, labels: &Labels| -> Labels {
            labels.iter().copied().filter(pick).collect()
        };
        let batch = of(&|l| both(l) && is_needed(*l), &a.labels);
        let summed = of(&|l| both(l) && !is_needed(*l), &a.labels);
        let rows = of(&|l| !both(l), &a.labels);
        let columns = of(&|l| !a.labels.contains(l), &b.labels);
        let labels: Labels = [&batch, &rows, &columns].into_iter().flatten().copied().collect();
        if summed.is_empty() || !a.tensor.dtype().is_float() {
            let all = || labels.iter().chain(&summed).copied();
            let product =
                Term { tensor: (a.in_order(all())? * b.in_order(all())?)?, labels: all().collect() };
            return product.keep(is_needed);
        }
        let sizes =
            |term: &Term, labels: &Labels| -> Dims { labels.iter().filter_map(|&l| term.size(l)).collect() };
        let matrix = |term: &Term, parts: [&Labels; 2]| {
            let merged = parts.map(|labels| sizes(term, labels).iter().product::<usize>());
            let shape: Dims = sizes(term, &batch).into_iter().chain(merged).collect();
            let order = [&batch, parts[0], parts[1]].into_iter().flatten().copied();
            term.in_order(order)?.reshape(Shape::from(&shape[..]))
        };
        let product = matrix(&a, [&rows, &summed])?.matmul(&matrix(&b, [&summed, &columns])?)?;
        let shape: Dims = labels.iter().filter_map(|&l| a.size(l).or(b.size(l))).collect();
        Ok(Term { tensor: product.reshape(Shape::from(&shape[..]))?, labels })
    }
}

/// Two dimensions with one label.
fn repeated(labels: &Labels) -> Option<(usize, usize)> {
    (0..labels.len()).find_map(|j| labels[..j].iter().position(|&l| l == labels[j]).map(|i| (i, j)))
}

/// The size of each label; dimensions of an ellipsis broadcast.
fn sizes(equation: &str, operands: &[&Tensor], labels: &[Labels]) -> Result<Vec<(Label, usize)>> {
    let mut sizes: Vec<(Label, usize)> = Vec::new();
    for (operand, labels) in operands.iter().zip(labels) {
        for (&label, &size) in labels.iter().zip(operand.dims()) {
            let Some((_, known)) = sizes.iter_mut().find(|(l, _)| *l == label) else {
                sizes.push((label, size));
                continue;
            };
            match label {
                _ if *known == size => {}
                Label::Ellipsis(_) if *known == 1 => *known = size,
                Label::Ellipsis(_) if size == 1 => {}
                Label::Ellipsis(_) => {
                    return refuse(format!(
                        "the dimensions of `...` in {equation:?} have sizes {known} and {size}; they must be equal or 1"
                    ));
                }
                Label::Letter(c) => {
                    return refuse(format!(
                        "subscript {c:?} of {equation:?} has sizes {known} and {size}; each subscript needs one size"
                    ));
                }
            }
        }
    }
    Ok(sizes)
}

impl Tensor {
    /// A sum of products in Einstein's notation, as in NumPy: each operand has a letter for each of its dimensions, and what is
    /// not behind the arrow is summed over.
    ///
    /// - `...` stands for the dimensions that have no letter; they broadcast.
    /// - A letter twice in one operand takes the diagonal.
    /// - Without an arrow, the result has `...` and then the letters that occur once, in the order of the alphabet.
    ///
    /// Operands are multiplied from left to right. Sums over letters of two operands are matrix products, with the dtypes and the
    /// precision of [`Tensor::matmul`]. Operands are floats or i64. The result may be a view of an
    /// operand if there is nothing to compute.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::cpu())?;
    /// let b = Tensor::from_slice(&[1.0f32, 10.0], [2], &Device::cpu())?;
    /// assert_eq!(Tensor::einsum("ij,j->i", &[&a, &b])?.to_vec::<f32>()?, [21.0, 43.0]);
    /// assert_eq!(Tensor::einsum("ij->ji", &[&a])?.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// assert_eq!(Tensor::einsum("ii", &[&a])?.to_scalar::<f32>()?, 5.0);
    /// # Ok::<(), refrain::Error>(())
    /// ```
    ///
    /// # Errors
    /// If an operand is of another dtype, or the equation does not fit the operands: another number of operands or dimensions, a letter with two sizes, a letter of
    /// the result that no operand has or that is there twice. Otherwise those of the operations that it is made of.
    pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
        let (inputs, output) = match equation.split_once("->") {
            Some((inputs, output)) => (inputs, Some(output)),
            None => (equation, None),
        };
        let inputs: Vec<&str> = inputs.split(',').collect();
        if inputs.len() != operands.len() {
            return refuse(format!(
                "{equation:?} has {} operands; {} were given",
                inputs.len(),
                operands.len()
            ));
        }
        let labels: Vec<Labels> = inputs
            .iter()
            .zip(operands)
            .map(|(subscripts, operand)| parse(subscripts, Some(operand.rank()), 0))
            .collect::<Result<_>>()?;
        // Products of narrower integers may not fit.
        let is_wide = |operand: &Tensor| operand.dtype().is_float() || operand.dtype() == DType::I64;
        if let Some(operand) = operands.iter().find(|operand| !is_wide(operand)) {
            return Err(operand.unsupported(OP));
        }
        let sizes = sizes(equation, operands, &labels)?;
        let ellipsis = sizes.iter().filter(|(l, _)| matches!(l, Label::Ellipsis(_))).count();
        let output = match output {
            Some(output) => parse(output, None, ellipsis)?,
            None => {
                let count = |c| labels.iter().flatten().filter(|&&l| l == Label::Letter(c)).count();
                let letters = ('A'..='Z').chain('a'..='z').filter(|&c| count(c) == 1).map(Label::Letter);
                (0..ellipsis).rev().map(Label::Ellipsis).chain(letters).collect()
            }
        };
        if let Some((i, _)) = repeated(&output) {
            return refuse(format!("the result of {equation:?} has subscript {} twice", name(output[i])));
        }
        if let Some(&label) = output.iter().find(|&&l| sizes.iter().all(|&(known, _)| known != l)) {
            return refuse(format!(
                "subscript {} of the result of {equation:?} is in no operand",
                name(label)
            ));
        }
        let mut terms = Vec::with_capacity(operands.len());
        for (operand, labels) in operands.iter().zip(&labels) {
            let size = |(&label, &own): (&Label, &usize)| {
                sizes.iter().find(|(l, _)| *l == label).map_or(own, |&(_, size)| size)
            };
            let shape: Dims = labels.iter().zip(operand.dims()).map(size).collect();
            terms.push(Term::new(operand.broadcast_to(&shape[..])?, labels.clone())?);
        }
        let mut terms = terms.into_iter();
        let Some(mut product) = terms.next() else {
            return refuse("there are no operands; give at least one");
        };
        while let Some(next) = terms.next() {
            let later: Labels = terms.as_slice().iter().flat_map(|t| t.labels.iter().copied()).collect();
            product = product.times(next, |l| output.contains(&l) || later.contains(&l))?;
        }
        let result = product.keep(|l| output.contains(&l))?;
        result.in_order(output.iter().copied())
    }
}

fn name(label: Label) -> String {
    match label {
        Label::Letter(c) => format!("{c:?}"),
        Label::Ellipsis(_) => "`...`".to_owned(),
    }
}
