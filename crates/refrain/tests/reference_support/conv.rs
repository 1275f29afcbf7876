//! Convolutions and pooling.

use refrain::{
    Conv1dOptions, Conv2dOptions, ConvTranspose1dOptions, ConvTranspose2dOptions, Pool1dOptions,
    Pool2dOptions,
};

use super::bound::{Bound, Bounds};
use super::case::Case;
use super::{Entry, one};

fn pair(c: &Case, key: &str) -> [usize; 2] {
    c.shape(key).try_into().unwrap()
}

fn conv2d(c: &Case) -> Conv2dOptions {
    Conv2dOptions {
        stride: pair(c, "stride"),
        padding: pair(c, "padding"),
        dilation: pair(c, "dilation"),
        groups: c.u("groups"),
    }
}

fn conv1d(c: &Case) -> Conv1dOptions {
    Conv1dOptions {
        stride: c.u("stride"),
        padding: c.u("padding"),
        dilation: c.u("dilation"),
        groups: c.u("groups"),
    }
}

fn conv_transpose2d(c: &Case) -> ConvTranspose2dOptions {
    ConvTranspose2dOptions {
        stride: pair(c, "stride"),
        padding: pair(c, "padding"),
        output_padding: pair(c, "output_padding"),
        dilation: pair(c, "dilation"),
        groups: c.u("groups"),
    }
}

fn conv_transpose1d(c: &Case) -> ConvTranspose1dOptions {
    ConvTranspose1dOptions {
        stride: c.u("stride"),
        padding: c.u("padding"),
        output_padding: c.u("output_padding"),
        dilation: c.u("dilation"),
        groups: c.u("groups"),
    }
}

fn pool2d(c: &Case) -> Pool2dOptions {
    Pool2dOptions {
        kernel: pair(c, "kernel"),
        stride: pair(c, "stride"),
        padding: pair(c, "padding"),
        count_include_pad: !c.has("all") || c.b("all"),
    }
}

fn pool1d(c: &Case) -> Pool1dOptions {
    Pool1dOptions {
        kernel: c.u("kernel"),
        stride: c.u("stride"),
        padding: c.u("padding"),
        count_include_pad: !c.has("all") || c.b("all"),
    }
}

/// Sums of products: the terms are the products of absolute values.
fn sums(_: &Case) -> Bounds {
    Bounds::Linear { exact_outs: false }
}

macro_rules! convolutions {
    ($($name:ident, $into:ident, $options:ident;)*) => {
        [$(Entry {
            op: stringify!($name),
            run: |c, x| one(x[0].$name(&x[1], x.get(2), &$options(c))),
            into: |c, x, y| Some(x[0].$into(&x[1], x.get(2), &$options(c), &y[0])),
            bounds: sums,
        }),*]
    };
}

pub fn entries() -> Vec<Entry> {
    let mut all = Vec::new();
    all.extend(convolutions! {
        conv1d, conv1d_into, conv1d;
        conv2d, conv2d_into, conv2d;
        conv_transpose1d, conv_transpose1d_into, conv_transpose1d;
        conv_transpose2d, conv_transpose2d_into, conv_transpose2d;
    });
    all.extend([
        Entry {
            op: "max_pool1d",
            run: |c, x| one(x[0].max_pool1d(&pool1d(c))),
            into: |c, x, y| Some(x[0].max_pool1d_into(&pool1d(c), &y[0])),
            bounds: max_bounds,
        },
        Entry {
            op: "max_pool2d",
            run: |c, x| one(x[0].max_pool2d(&pool2d(c))),
            into: |c, x, y| Some(x[0].max_pool2d_into(&pool2d(c), &y[0])),
            bounds: max_bounds,
        },
        Entry {
            op: "avg_pool1d",
            run: |c, x| one(x[0].avg_pool1d(&pool1d(c))),
            into: |c, x, y| Some(x[0].avg_pool1d_into(&pool1d(c), &y[0])),
            bounds: sums,
        },
        Entry {
            op: "avg_pool2d",
            run: |c, x| one(x[0].avg_pool2d(&pool2d(c))),
            into: |c, x, y| Some(x[0].avg_pool2d_into(&pool2d(c), &y[0])),
            bounds: sums,
        },
    ]);
    all
}

/// A choice among elements is exact; an element sums the cotangents of at most as many windows as have an element, and none
/// is larger than the largest.
fn max_bounds(c: &Case) -> Bounds {
    let d = c.cotangent(0).abs().data.iter().copied().fold(0.0, f64::max);
    let x = c.operand(0);
    let windows =
        if c.attrs["kernel"].is_array() { pair(c, "kernel").iter().product() } else { c.u("kernel") };
    Bounds::of(Bound::Exact, [x.map(|_| d * windows as f64)])
}
