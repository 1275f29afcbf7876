//! Small arrays of f64, for bounds on rounding errors: nothing here is part of the engine under test.

#[derive(Clone, Debug, PartialEq)]
pub struct Nd {
    pub dims: Vec<usize>,
    pub data: Vec<f64>,
}

pub fn strides(dims: &[usize]) -> Vec<usize> {
    let mut s = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        s[i - 1] = s[i] * dims[i];
    }
    s
}

impl Nd {
    pub fn full(dims: &[usize], value: f64) -> Nd {
        Nd { dims: dims.to_vec(), data: vec![value; dims.iter().product()] }
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Nd {
        Nd { dims: self.dims.clone(), data: self.data.iter().map(|&v| f(v)).collect() }
    }

    pub fn abs(&self) -> Nd {
        self.map(f64::abs)
    }

    /// Repeats sizes of 1 and missing leading dimensions.
    pub fn expand(&self, dims: &[usize]) -> Nd {
        let view = super::case::View::Broadcast(dims.to_vec());
        let (dims, at) = view.indices(&self.dims);
        Nd { dims, data: at.iter().map(|&i| self.data[i]).collect() }
    }

    /// The adjoint of `expand`.
    pub fn sum_to(&self, dims: &[usize]) -> Nd {
        let view = super::case::View::Broadcast(self.dims.clone());
        let mut out = Nd::full(dims, 0.0);
        for (&v, i) in self.data.iter().zip(view.indices(dims).1) {
            out.data[i] += v;
        }
        out
    }

    /// `f` of both, broadcast.
    pub fn zip(&self, other: &Nd, f: impl Fn(f64, f64) -> f64) -> Nd {
        let dims = broadcast(&self.dims, &other.dims);
        let (a, b) = (self.expand(&dims), other.expand(&dims));
        Nd { data: a.data.iter().zip(&b.data).map(|(&x, &y)| f(x, y)).collect(), dims }
    }

    pub fn add(&self, other: &Nd) -> Nd {
        self.zip(other, |a, b| a + b)
    }

    pub fn mul(&self, other: &Nd) -> Nd {
        self.zip(other, |a, b| a * b)
    }

    pub fn scale(&self, s: f64) -> Nd {
        self.map(|v| v * s)
    }

    /// Folds along axes, which stay as sizes of 1.
    pub fn fold(&self, axes: &[usize], start: f64, f: impl Fn(f64, f64) -> f64) -> Nd {
        let dims: Vec<usize> =
            self.dims.iter().enumerate().map(|(i, &d)| if axes.contains(&i) { 1 } else { d }).collect();
        let mut out = Nd::full(&dims, start);
        let view = super::case::View::Broadcast(self.dims.clone());
        for (&v, i) in self.data.iter().zip(view.indices(&dims).1) {
            out.data[i] = f(out.data[i], v);
        }
        out
    }

    /// Sums along axes, which stay as sizes of 1.
    pub fn sum(&self, axes: &[usize]) -> Nd {
        self.fold(axes, 0.0, |a, b| a + b)
    }

    /// The largest along axes, which stay as sizes of 1.
    pub fn max(&self, axes: &[usize]) -> Nd {
        self.fold(axes, f64::NEG_INFINITY, f64::max)
    }

    /// Means along axes, which stay as sizes of 1.
    pub fn mean(&self, axes: &[usize]) -> Nd {
        let n: usize = axes.iter().map(|&a| self.dims[a]).product();
        self.sum(axes).scale(1.0 / n as f64)
    }

    pub fn reshape(&self, dims: &[usize]) -> Nd {
        assert_eq!(dims.iter().product::<usize>(), self.data.len());
        Nd { dims: dims.to_vec(), data: self.data.clone() }
    }

    /// The last two dimensions swapped.
    pub fn t(&self) -> Nd {
        let n = self.dims.len();
        let order = (0..n - 2).chain([n - 1, n - 2]).map(|i| i as isize).collect();
        let (dims, at) = super::case::View::Permute(order).indices(&self.dims);
        Nd { dims, data: at.iter().map(|&i| self.data[i]).collect() }
    }

    /// Matrix products of the last two dimensions; leading ones broadcast.
    pub fn matmul(&self, other: &Nd) -> Nd {
        let (ra, rb) = (self.dims.len(), other.dims.len());
        let (m, k, n) = (self.dims[ra - 2], self.dims[ra - 1], other.dims[rb - 1]);
        assert_eq!(k, other.dims[rb - 2]);
        let batch = broadcast(&self.dims[..ra - 2], &other.dims[..rb - 2]);
        let a = self.expand(&[&batch[..], &[m, k]].concat());
        let b = other.expand(&[&batch[..], &[k, n]].concat());
        let mut out = Nd::full(&[&batch[..], &[m, n]].concat(), 0.0);
        for z in 0..batch.iter().product() {
            for i in 0..m {
                for j in 0..n {
                    out.data[(z * m + i) * n + j] =
                        (0..k).map(|l| a.data[(z * m + i) * k + l] * b.data[(z * k + l) * n + j]).sum();
                }
            }
        }
        out
    }
}

/// The shape that both broadcast to.
pub fn broadcast(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |j| s[j]);
    (0..rank).map(|i| if at(a, i) == 1 { at(b, i) } else { at(a, i) }).collect()
}
