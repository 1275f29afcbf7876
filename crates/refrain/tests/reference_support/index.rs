//! Joining, repeating, picking and scattering elements.

use refrain::{DType, Tensor};

use super::bound::Bounds;
use super::case::Case;
use super::{Entry, one};

fn moved(_: &Case) -> Bounds {
    Bounds::Linear { exact_outs: true }
}

fn references(x: &[Tensor]) -> Vec<&Tensor> {
    x.iter().collect()
}

pub(super) fn padding(c: &Case) -> Vec<(usize, usize)> {
    c.list("padding", |v| Some((v[0].as_u64()? as usize, v[1].as_u64()? as usize)))
}

pub fn entries() -> Vec<Entry> {
    vec![
        Entry {
            op: "concat",
            run: |c, x| one(Tensor::concat(&references(x), c.i("axis"))),
            into: |c, x, y| Some(Tensor::concat_into(&references(x), c.i("axis"), &y[0])),
            bounds: moved,
        },
        Entry {
            op: "stack",
            run: |c, x| one(Tensor::stack(&references(x), c.i("axis"))),
            into: |c, x, y| Some(Tensor::stack_into(&references(x), c.i("axis"), &y[0])),
            bounds: moved,
        },
        Entry {
            op: "repeat",
            run: |c, x| one(x[0].repeat(&c.shape("repeats"))),
            into: |c, x, y| Some(x[0].repeat_into(&c.shape("repeats"), &y[0])),
            bounds: moved,
        },
        Entry {
            op: "pad",
            run: |c, x| one(x[0].pad(&padding(c), c.f("value"))),
            into: |c, x, y| Some(x[0].pad_into(&padding(c), c.f("value"), &y[0])),
            bounds: moved,
        },
        Entry {
            op: "gather",
            run: |c, x| one(x[0].gather(c.i("axis"), &x[1])),
            into: |c, x, y| Some(x[0].gather_into(c.i("axis"), &x[1], &y[0])),
            bounds: moved,
        },
        Entry {
            op: "index_select",
            run: |c, x| one(x[0].index_select(c.i("axis"), &x[1])),
            into: |c, x, y| Some(x[0].index_select_into(c.i("axis"), &x[1], &y[0])),
            bounds: moved,
        },
        Entry {
            op: "scatter_add",
            run: |c, x| one(x[0].scatter_add(c.i("axis"), &x[1], &x[2])),
            into: |c, x, y| Some(x[0].scatter_add_into(c.i("axis"), &x[1], &x[2], &y[0])),
            bounds: |_| Bounds::Linear { exact_outs: false },
        },
        Entry {
            op: "one_hot",
            run: |c, x| one(x[0].one_hot(c.u("num_classes"), DType::I64)),
            into: |c, x, y| Some(x[0].one_hot_into(c.u("num_classes"), &y[0])),
            bounds: Bounds::exact,
        },
        Entry {
            op: "embedding",
            run: |_, x| one(x[1].embedding(&x[0])),
            into: |_, x, y| Some(x[1].embedding_into(&x[0], &y[0])),
            bounds: moved,
        },
        Entry {
            op: "where",
            run: |_, x| one(x[0].where_cond(&x[1], &x[2])),
            into: |_, x, y| Some(x[0].where_cond_into(&x[1], &x[2], &y[0])),
            bounds: moved,
        },
    ]
}
