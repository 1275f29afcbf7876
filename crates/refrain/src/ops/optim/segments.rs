//! Segments of flat buffers: how each range of elements is updated.

use std::sync::Arc;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

const OP: &str = "segment_table";

/// A range of elements of a flat buffer, and how an optimiser treats it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// The first element.
    pub offset: usize,
    /// The number of elements.
    pub length: usize,
    /// Factor of the weight decay: 0 for biases and norms that must not decay.
    pub decay_factor: f64,
    /// Factor of the learning rate.
    pub rate_factor: f64,
    /// Whether parameters and moments change. Gradients are set to zero in any case.
    pub trainable: bool,
}

impl Segment {
    /// A trainable segment with both factors 1.
    pub fn new(offset: usize, length: usize) -> Segment {
        Segment { offset, length, decay_factor: 1.0, rate_factor: 1.0, trainable: true }
    }
}

/// The segments of a flat buffer, on a device. They are in ascending order, do not overlap, and can't move. Elements
/// between segments (padding) do not change.
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
    /// Makes a table on `device`.
    ///
    /// # Errors
    /// If the segments are not in ascending order or overlap, or a factor is negative or not finite.
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
                            "segment {i} ({} elements from {}) begins before element {end}, the end of the segment before it, or is too long; order segments by offset, without overlap",
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

    /// The number of segments.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether the table has no segments.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Reads the segments from the device.
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

    /// Changes factors and flags in place, in order with the steps before and after.
    ///
    /// # Errors
    /// If the offsets or lengths differ from those of the table, or as for [`SegmentTable::new`].
    pub fn write_from(&self, segments: &[Segment]) -> Result<()> {
        if !segments.iter().map(|s| (s.offset, s.length)).eq(self.runs.iter().copied()) {
            return Err(Error::invalid(
                OP,
                "offsets and lengths of a table are fixed; change factors and flags only, or make a new table",
            ));
        }
        self.settings.write_from(&settings_of(segments)?)
    }

    /// One past the last element of all segments.
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
