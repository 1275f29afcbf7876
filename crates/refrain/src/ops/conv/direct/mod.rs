//! Convolutions of groups of few channels, above all of each channel by itself (depthwise): as matrix products their factors would
//! have almost no rows. Each result is a sum over its window, without a matrix of windows.

pub(super) mod cuda;
pub(super) mod host;

use super::places::Places;

/// Channels of a group, of the images and of the results, at most. With more, products are faster.
const MOST_CHANNELS: usize = 8;

/// Whether groups have so few channels, and some.
pub(super) fn suits(places: &Places) -> bool {
    let few = 1..=MOST_CHANNELS;
    few.contains(&(places.images[1] / places.groups)) && few.contains(&(places.out / places.groups))
}
