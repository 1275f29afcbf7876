//! Products and quotients whose intermediates may leave the range of their type.

use crate::device::cpu::numeric::Real;

/// `mantissa * 2^exponent`: a product or quotient of a few such numbers overflows or underflows only if its result
/// does.
#[derive(Clone, Copy)]
pub(super) struct Scaled {
    mantissa: f64,
    exponent: i32,
}

impl Scaled {
    pub(super) fn of<R: Real>(x: R) -> Scaled {
        let (mantissa, exponent) = libm::frexp(x.to_f64());
        Scaled { mantissa, exponent }
    }

    /// The number, rounded to the type of the arithmetic.
    pub(super) fn get<R: Real>(self) -> R {
        R::from_f64(libm::scalbn(self.mantissa, self.exponent))
    }
}

impl std::ops::Mul for Scaled {
    type Output = Scaled;

    fn mul(self, other: Scaled) -> Scaled {
        Scaled { mantissa: self.mantissa * other.mantissa, exponent: self.exponent + other.exponent }
    }
}

impl std::ops::Div for Scaled {
    type Output = Scaled;

    fn div(self, other: Scaled) -> Scaled {
        Scaled { mantissa: self.mantissa / other.mantissa, exponent: self.exponent - other.exponent }
    }
}

impl std::ops::Neg for Scaled {
    type Output = Scaled;

    fn neg(self) -> Scaled {
        Scaled { mantissa: -self.mantissa, ..self }
    }
}
