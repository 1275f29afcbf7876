//! `a + b`, `a * 2.0`, `-a`: operators for the methods of the same meaning. They return a `Result`, because a panic would
//! be the only other answer to shapes that do not match.

use crate::error::Result;
use crate::tensor::Tensor;

/// The second operand of an operator: a tensor, or the result of another operator.
macro_rules! with_tensors {
    ($($operator:ident, $name:ident => $method:ident;)*) => {$(
        with_tensors!(@left $operator, $name, $method, Tensor);
        with_tensors!(@left $operator, $name, $method, &Tensor);
    )*};
    (@left $operator:ident, $name:ident, $method:ident, $left:ty) => {
        impl std::ops::$operator<&Tensor> for $left {
            type Output = Result<Tensor>;
            fn $name(self, other: &Tensor) -> Result<Tensor> {
                Tensor::$method(&self, other)
            }
        }
        impl std::ops::$operator<Tensor> for $left {
            type Output = Result<Tensor>;
            fn $name(self, other: Tensor) -> Result<Tensor> {
                Tensor::$method(&self, &other)
            }
        }
        impl std::ops::$operator<Result<Tensor>> for $left {
            type Output = Result<Tensor>;
            fn $name(self, other: Result<Tensor>) -> Result<Tensor> {
                Tensor::$method(&self, &other?)
            }
        }
    };
}

with_tensors! {
    Add, add => add;
    Sub, sub => sub;
    Mul, mul => mul;
    Div, div => div;
}

/// A number as the second operand, or as the first.
macro_rules! with_numbers {
    ($($operator:ident, $name:ident => $right:ident, $left:ident;)*) => {$(
        with_numbers!(@of $operator, $name, $right, $left, Tensor);
        with_numbers!(@of $operator, $name, $right, $left, &Tensor);
    )*};
    (@of $operator:ident, $name:ident, $right:ident, $left:ident, $tensor:ty) => {
        impl std::ops::$operator<f64> for $tensor {
            type Output = Result<Tensor>;
            fn $name(self, number: f64) -> Result<Tensor> {
                Tensor::$right(&self, number)
            }
        }
        impl std::ops::$operator<$tensor> for f64 {
            type Output = Result<Tensor>;
            fn $name(self, tensor: $tensor) -> Result<Tensor> {
                Tensor::$left(&tensor, self)
            }
        }
    };
}

with_numbers! {
    Add, add => add_scalar, add_scalar;
    Sub, sub => sub_scalar, scalar_sub;
    Mul, mul => mul_scalar, mul_scalar;
    Div, div => div_scalar, scalar_div;
}

impl std::ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl std::ops::Neg for Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(&self)
    }
}
