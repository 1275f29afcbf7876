//! What is no layer, but holds layers; and what is never one.

use std::marker::PhantomData;

use super::{Arc, LayerTree, Layers, Parameter, Rc};
use refrain::{Activation, DType, Device, Tensor};

impl Layers for Parameter {
    fn layers(&self) -> LayerTree {
        let kind = if self.is_buffer() { "Buffer" } else { "Parameter" };
        LayerTree { settings: vec![self.shape().to_string()], ..LayerTree::new(kind).parameter(self) }
    }
}

impl Layers for Activation {
    fn layers(&self) -> LayerTree {
        match self {
            Activation::None => LayerTree::nothing(),
            other => LayerTree::new(format!("{other:?}")),
        }
    }
}

impl<T: Layers> Layers for Option<T> {
    fn layers(&self) -> LayerTree {
        self.as_ref().map_or_else(LayerTree::nothing, T::layers)
    }
}

macro_rules! behind {
    ($($pointer:ty),*) => {$(
        impl<T: Layers + ?Sized> Layers for $pointer {
            fn layers(&self) -> LayerTree {
                (**self).layers()
            }
        }
    )*};
}
behind!(&T, Box<T>, Rc<T>, Arc<T>);

impl<T: Layers> Layers for [T] {
    fn layers(&self) -> LayerTree {
        LayerTree::list("List", self)
    }
}

impl<T: Layers> Layers for Vec<T> {
    fn layers(&self) -> LayerTree {
        self.as_slice().layers()
    }
}

impl<T: Layers, const N: usize> Layers for [T; N] {
    fn layers(&self) -> LayerTree {
        self.as_slice().layers()
    }
}

macro_rules! tuples {
    ($($($name:ident)+;)*) => {$(
        impl<$($name: Layers),+> Layers for ($($name,)+) {
            fn layers(&self) -> LayerTree {
                #[allow(non_snake_case)]
                let ($($name,)+) = self;
                LayerTree::list("Tuple", [$($name as &dyn Layers),+].iter())
            }
        }
    )*};
}
tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

impl<T: ?Sized> Layers for PhantomData<T> {
    fn layers(&self) -> LayerTree {
        LayerTree::nothing()
    }
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Layers for $type {
            fn layers(&self) -> LayerTree {
                LayerTree::nothing()
            }
        }
    )*};
}
plain!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);
plain!((), bool, char, str, String, DType, Device, Tensor);
