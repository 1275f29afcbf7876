//! Which run of a flat buffer is updated how.

use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

const OP: &str = "segment_table";

/// A run of elements of a flat buffer and how an optimiser treats it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// The first element.
    pub offset: usize,
    /// How many elements.
    pub length: usize,
    /// The optimiser's weight decay is multiplied by this: 0 for biases and norms that shall not decay.
    pub decay_factor: f64,
    /// The learning rate is multiplied by this.
    pub rate_factor: f64,
    /// Whether parameters and moments change at all. Gradients are zeroed in any case.
    pub trainable: bool,
}

impl Segment {
    /// A trainable run with both factors 1.
    pub fn new(offset: usize, length: usize) -> Segment {
        Segment { offset, length, decay_factor: 1.0, rate_factor: 1.0, trainable: true }
    }
}

/// The segments of a flat buffer, on a device: in rising order, disjoint, fixed in place. Elements
/// between segments (padding) are not touched.
///
/// A clone is a handle to the same table.
#[derive(Clone)]
pub struct SegmentTable {
    runs: Arc<[(usize, usize)]>,
    /// i64 `[S, 2]`: offset, length.
    ranges: Tensor,
    /// f64 `[S, 3]`: decay factor, rate factor, trainable (1 or 0).
    settings: Tensor,
}

fn settings_of(segments: &[Segment]) -> Result<Vec<f64>> {
    let mut settings = Vec::with_capacity(3 * segments.len());
    for (i, s) in segments.iter().enumerate() {
        for (name, factor) in [("decay_factor", s.decay_factor), ("rate_factor", s.rate_factor)] {
            if !(factor.is_finite() && factor >= 0.0) {
                return Err(Error::invalid(
                    OP,
                    format!("segment {i} has {name} {factor}; it must be a finite number of at least 0"),
                ));
            }
        }
        settings.extend([s.decay_factor, s.rate_factor, s.trainable as u8 as f64]);
    }
    Ok(settings)
}

impl SegmentTable {
    /// A table on `device`.
    ///
    /// # Errors
    /// If the segments are not in rising order or overlap, or a factor is negative or not finite.
    pub fn new(segments: &[Segment], device: &Device) -> Result<SegmentTable> {
        let mut end = 0;
        for (i, s) in segments.iter().enumerate() {
            let next = s.offset.checked_add(s.length).filter(|&e| e <= isize::MAX as usize);
            match next {
                Some(next) if s.offset >= end => end = next,
                _ => {
                    return Err(Error::invalid(
                        OP,
                        format!(
                            "segment {i} ({} elements from {}) begins before element {end}, where the one before it ends, or is too long; order segments by offset without overlap",
                            s.length, s.offset
                        ),
                    ));
                }
            }
        }
        let ranges: Vec<i64> = segments.iter().flat_map(|s| [s.offset as i64, s.length as i64]).collect();
        Ok(SegmentTable {
            runs: segments.iter().map(|s| (s.offset, s.length)).collect(),
            ranges: Tensor::from_slice(&ranges, [segments.len(), 2], device)?,
            settings: Tensor::from_slice(&settings_of(segments)?, [segments.len(), 3], device)?,
        })
    }

    /// How many segments there are.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is no segment.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The segments as they stand on the device.
    pub fn segments(&self) -> Result<Vec<Segment>> {
        let settings = self.settings.to_vec::<f64>()?;
        let of = |(&(offset, length), s): (&(usize, usize), &[f64])| Segment {
            offset,
            length,
            decay_factor: s[0],
            rate_factor: s[1],
            trainable: s[2] != 0.0,
        };
        Ok(self.runs.iter().zip(settings.chunks(3)).map(of).collect())
    }

    /// Changes factors and flags, in place and in order with the steps before and after.
    ///
    /// # Errors
    /// If the runs of elements are others than the table was made with, or as for [`SegmentTable::new`].
    pub fn write_from(&self, segments: &[Segment]) -> Result<()> {
        if !segments.iter().map(|s| (s.offset, s.length)).eq(self.runs.iter().copied()) {
            return Err(Error::invalid(
                OP,
                "offsets and lengths of a table are fixed; change factors and flags only, or make a new table",
            ));
        }
        self.settings.write_from(&settings_of(segments)?)
    }

    /// One past the last element that a segment covers.
    pub(super) fn end(&self) -> usize {
        self.runs.last().map_or(0, |(offset, length)| offset + length)
    }

    pub(super) fn ranges(&self) -> &Tensor {
        &self.ranges
    }

    pub(super) fn settings(&self) -> &Tensor {
        &self.settings
    }
}
