//! Layouts: where the elements of a tensor are in its storage.

use std::ops::Range;

use smallvec::SmallVec;

use super::shape::{Dims, Shape};

/// The axes of images `[N, C, H, W]` as `[N, H, W, C]`, and back.
pub(crate) const PIXELS_FIRST: [usize; 4] = [0, 2, 3, 1];
pub(crate) const CHANNELS_FIRST: [usize; 4] = [0, 3, 1, 2];

/// Shape, strides and offset, counted in elements. Strides are never negative. A stride of 0 repeats memory
/// (broadcasting).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    shape: Shape,
    strides: Dims,
    offset: usize,
}

impl Layout {
    /// Row-major, at the start of the storage.
    pub(crate) fn contiguous(shape: Shape) -> Layout {
        let strides = row_major(&shape);
        Layout { shape, strides, offset: 0 }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn strides(&self) -> &[usize] {
        &self.strides
    }

    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn rank(&self) -> usize {
        self.shape.rank()
    }

    pub(crate) fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Row-major without gaps, at any offset. Sizes of 1 may have any stride.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&d, &s) in self.shape.iter().zip(&self.strides).rev() {
            if d == 0 {
                return true;
            }
            if d != 1 && s != expected {
                return false;
            }
            expected *= d;
        }
        true
    }

    /// Whether these are images `[N, C, H, W]` whose channels are adjacent: as a row-major `[N, H, W, C]`, and not as `[N, C, H, W]`.
    pub(crate) fn is_channels_last(&self) -> bool {
        self.rank() == 4 && !self.is_contiguous() && self.permute(&PIXELS_FIRST).is_contiguous()
    }

    /// Whether elements along the last axis are adjacent.
    pub(crate) fn is_inner_contiguous(&self) -> bool {
        self.numel() == 0
            || match (self.shape.last(), self.strides.last()) {
                (Some(&d), Some(&s)) => d == 1 || s == 1,
                _ => true,
            }
    }

    /// Whether two indices can name the same element (a broadcast view).
    pub(crate) fn repeats_memory(&self) -> bool {
        if self.numel() <= 1 || self.is_contiguous() {
            return false;
        }
        // Sorted by stride, each dimension must step over everything that the smaller ones span.
        let mut dims: SmallVec<[(usize, usize); 6]> =
            self.strides.iter().copied().zip(self.shape.iter().copied()).filter(|&(_, d)| d > 1).collect();
        dims.sort_unstable();
        let mut span = 1;
        for (stride, d) in dims {
            if stride < span {
                return true;
            }
            span += stride * (d - 1);
        }
        false
    }

    /// The layout of a new storage whose elements lie in the same order as these, which have no gaps between them.
    pub(crate) fn packed(&self) -> Option<Layout> {
        let has_no_gaps = self.span().len() == self.numel() && !self.repeats_memory();
        has_no_gaps.then(|| Layout { offset: 0, ..self.clone() })
    }

    /// Whether neighbours along each axis are equally far apart in both layouts, which have one shape.
    pub(crate) fn has_strides_of(&self, other: &Layout) -> bool {
        let strides = self.strides.iter().zip(&other.strides);
        self.shape == other.shape && self.shape.iter().zip(strides).all(|(&d, (a, b))| d == 1 || a == b)
    }

    /// The range of storage elements from the first to the last one used.
    pub(crate) fn span(&self) -> Range<usize> {
        if self.numel() == 0 {
            return self.offset..self.offset;
        }
        let last: usize = self.shape.iter().zip(&self.strides).map(|(&d, &s)| (d - 1) * s).sum();
        self.offset..self.offset + last + 1
    }

    /// Whether the two layouts share no element, as far as a cheap test can tell: either their spans are disjoint, or
    /// both are windows of a larger tensor that are disjoint along some dimension (`narrow`, `split`).
    pub(crate) fn is_disjoint(&self, other: &Layout) -> bool {
        let (a, b) = (self.span(), other.span());
        if a.is_empty() || b.is_empty() || a.end <= b.start || b.end <= a.start {
            return true;
        }
        if self.rank() != other.rank() || self.strides != other.strides || self.repeats_memory() {
            return false;
        }
        // Both layouts are on one grid. In grid coordinates (largest stride first), each is a box if no axis reaches
        // over the stride of the next larger one. Two boxes are disjoint if they are disjoint along some axis. The
        // origin of the grid is not known; try the start of the storage and the first window.
        let mut order: SmallVec<[usize; 6]> = (0..self.rank()).collect();
        order.sort_unstable_by_key(|&i| std::cmp::Reverse(self.strides[i]));
        let apart = |origin: usize| -> bool {
            let (mut x, mut y) = (self.offset - origin, other.offset - origin);
            let mut room = usize::MAX;
            let mut missed = false;
            for &i in &order {
                let stride = self.strides[i];
                let (from_x, from_y) = (x / stride, y / stride);
                let (to_x, to_y) = (from_x + self.shape[i], from_y + other.shape[i]);
                if to_x.max(to_y) > room.div_ceil(stride) {
                    return false;
                }
                missed |= to_x <= from_y || to_y <= from_x;
                (x, y, room) = (x % stride, y % stride, stride);
            }
            missed || x != y
        };
        self.strides.iter().all(|&s| s > 0) && (apart(0) || apart(self.offset.min(other.offset)))
    }

    /// The same elements in another shape, if the strides allow it.
    pub(crate) fn reshape(&self, shape: &Shape) -> Option<Layout> {
        if self.numel() != shape.numel() {
            return None;
        }
        if self.is_contiguous() || self.numel() == 0 {
            return Some(Layout { shape: shape.clone(), strides: row_major(shape), offset: self.offset });
        }
        // Merge the old dimensions into evenly spaced runs, then split the runs again.
        let old: SmallVec<[(usize, usize); 6]> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(d, _)| d != 1).collect();
        let mut strides: Dims = SmallVec::from_elem(1, shape.rank());
        let (mut i, mut j) = (0, 0);
        while i < old.len() {
            let mut old_size = old[i].0;
            let mut end = i + 1;
            let start_j = j;
            let mut new_size = 1;
            while j < shape.rank() && (new_size < old_size || shape[j] == 1) {
                new_size *= shape[j];
                j += 1;
                while new_size > old_size && end < old.len() {
                    old_size *= old[end].0;
                    end += 1;
                }
            }
            while new_size != old_size {
                if new_size < old_size && j < shape.rank() {
                    new_size *= shape[j];
                    j += 1;
                } else if end < old.len() {
                    old_size *= old[end].0;
                    end += 1;
                } else {
                    return None;
                }
            }
            if (i + 1..end).any(|k| old[k - 1].1 != old[k].1 * old[k].0) {
                return None;
            }
            let mut stride = old[end - 1].1;
            for k in (start_j..j).rev() {
                strides[k] = stride;
                stride *= shape[k];
            }
            i = end;
        }
        Some(Layout { shape: shape.clone(), strides, offset: self.offset })
    }

    pub(crate) fn permute(&self, order: &[usize]) -> Layout {
        Layout {
            shape: order.iter().map(|&i| self.shape[i]).collect(),
            strides: order.iter().map(|&i| self.strides[i]).collect(),
            offset: self.offset,
        }
    }

    pub(crate) fn narrow(&self, axis: usize, start: usize, len: usize) -> Layout {
        let mut out = self.clone();
        out.shape.dims_mut()[axis] = len;
        // Without elements there is no first element to point at.
        if out.numel() > 0 {
            out.offset += start * self.strides[axis];
        }
        out
    }

    /// Repeats sizes of 1 (and missing leading dimensions) to reach `shape`. `None` if that is impossible.
    pub(crate) fn broadcast_to(&self, shape: &Shape) -> Option<Layout> {
        let lead = shape.rank().checked_sub(self.rank())?;
        let mut strides: Dims = SmallVec::from_elem(0, shape.rank());
        for (i, (&d, &s)) in self.shape.iter().zip(&self.strides).enumerate() {
            match d == shape[lead + i] {
                true => strides[lead + i] = s,
                false if d == 1 => {}
                false => return None,
            }
        }
        Some(Layout { shape: shape.clone(), strides, offset: self.offset })
    }

    /// Inserts a dimension of size 1.
    pub(crate) fn unsqueeze(&self, axis: usize) -> Layout {
        let mut out = self.clone();
        let stride = if axis < self.rank() { self.strides[axis] * self.shape[axis].max(1) } else { 1 };
        out.shape.dims_mut().insert(axis, 1);
        out.strides.insert(axis, stride);
        out
    }

    /// Removes a dimension: one of size 1, or any other at its first index.
    pub(crate) fn squeeze(&self, axis: usize) -> Layout {
        let mut out = self.clone();
        out.shape.dims_mut().remove(axis);
        out.strides.remove(axis);
        out
    }

    /// Windows of `size` elements, every `step` along `axis`. The elements of a window become a new last axis.
    pub(crate) fn unfold(&self, axis: usize, size: usize, step: usize) -> Layout {
        let mut out = self.clone();
        out.shape.dims_mut()[axis] = (self.shape[axis] - size) / step + 1;
        out.shape.dims_mut().push(size);
        // A single window takes no step.
        out.strides[axis] = self.strides[axis].saturating_mul(step);
        out.strides.push(self.strides[axis]);
        out
    }
}

/// The strides of a contiguous tensor.
pub(crate) fn row_major(shape: &Shape) -> Dims {
    let mut strides: Dims = SmallVec::from_elem(1, shape.rank());
    for i in (1..shape.rank()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn elements(l: &Layout) -> Vec<usize> {
        let mut out = vec![l.offset];
        for (&d, &s) in l.shape.iter().zip(&l.strides) {
            out = out.iter().flat_map(|&o| (0..d).map(move |i| o + i * s)).collect();
        }
        out
    }

    prop_compose! {
        /// A window of a permuted tensor, sometimes with a repeated dimension.
        fn any_layout()(dims in prop::collection::vec(1usize..5, 1..5))
            (order in Just((0..dims.len()).collect::<Vec<_>>()).prop_shuffle(),
             cuts in prop::collection::vec((0usize..4, 1usize..5), dims.len()),
             repeat in prop::option::of(0usize..3),
             dims in Just(dims)) -> Layout {
            let mut l = Layout::contiguous(dims.into()).permute(&order);
            for (axis, (start, len)) in cuts.into_iter().enumerate() {
                let size = l.shape()[axis];
                let start = start % size;
                l = l.narrow(axis, start, len.min(size - start));
            }
            if let Some(n) = repeat {
                l = l.unsqueeze(0);
                let mut shape = l.shape().to_vec();
                shape[0] = n + 1;
                l = l.broadcast_to(&shape.into()).unwrap();
            }
            l
        }
    }

    proptest! {
        #[test]
        fn a_reshaped_layout_names_the_same_elements_in_the_same_order(l in any_layout(), cut in 0usize..6) {
            let n = l.numel();
            let divisors: Vec<usize> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
            let d = divisors[cut % divisors.len()];
            for shape in [Shape::from(n), [d, n / d].into(), [1, d, 1, n / d].into()] {
                if let Some(r) = l.reshape(&shape) {
                    prop_assert_eq!(r.shape(), &shape);
                    prop_assert_eq!(elements(&r), elements(&l));
                } else {
                    prop_assert!(!l.is_contiguous());
                }
            }
            prop_assert!(l.reshape(l.shape()).is_some());
        }

        #[test]
        fn repeated_memory_is_found(l in any_layout()) {
            let mut e = elements(&l);
            e.sort_unstable();
            let distinct = { let mut d = e.clone(); d.dedup(); d.len() };
            prop_assert_eq!(l.repeats_memory(), distinct < e.len());
            prop_assert_eq!(l.span(), *e.first().unwrap()..*e.last().unwrap() + 1);
        }

        #[test]
        fn layouts_called_disjoint_share_no_element(a in any_layout(), b in any_layout(),
                                                    starts in prop::array::uniform3((0usize..4, 0usize..4)),
                                                    lens in prop::array::uniform3((1usize..4, 1usize..4))) {
            let check = |a: &Layout, b: &Layout| {
                let eb = elements(b);
                a.is_disjoint(b) <= !elements(a).iter().any(|e| eb.contains(e))
            };
            prop_assert!(check(&a, &b));
            let base = Layout::contiguous([4, 4, 4].into());
            let (mut x, mut y) = (base.clone(), base);
            for axis in 0..3 {
                let ((sx, sy), (lx, ly)) = (starts[axis], lens[axis]);
                x = x.narrow(axis, sx, lx.min(4 - sx));
                y = y.narrow(axis, sy, ly.min(4 - sy));
            }
            // For windows of one tensor, the answer is exact.
            let ey = elements(&y);
            prop_assert_eq!(x.is_disjoint(&y), !elements(&x).iter().any(|e| ey.contains(e)));
        }
    }

    #[test]
    fn a_view_that_strides_forbid_is_refused() {
        let l = Layout::contiguous([3, 4].into()).permute(&[1, 0]);
        assert!(l.reshape(&12.into()).is_none());
        assert!(l.reshape(&[4, 3, 1].into()).is_some());
        assert!(l.reshape(&[2, 2, 3].into()).is_some());
    }
}
