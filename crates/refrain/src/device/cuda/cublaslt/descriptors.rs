//! The library's descriptors, destroyed when dropped.
#![allow(unsafe_code)] // Calls cuBLASLt.

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{self, cublasLtMatmulDescAttributes_t as Attribute};

use crate::device::cuda::MatrixOperand;
use crate::types::DType;

/// An operand as the library sees it: column-major. For the library, our row-major matrix is the transpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Side {
    pub(super) transposed: bool,
    pub(super) leading: usize,
    pub(super) batch: usize,
    pub(super) alignment: usize,
}

impl Side {
    /// A column-major matrix: its rows and columns, whether each of the two dimensions is dense, and its strides.
    pub(super) fn of(
        x: &MatrixOperand,
        sizes: [usize; 2],
        dense: [bool; 2],
        steps: [usize; 2],
    ) -> Option<Side> {
        let transposed = !dense[0];
        let (along, across) = if transposed { (1, 0) } else { (0, 1) };
        if !dense[along] {
            return None;
        }
        // For a single column, the stride does not matter.
        let leading = if sizes[across] > 1 { steps[across] } else { sizes[along] };
        (leading >= sizes[along]).then(|| Side {
            transposed,
            leading,
            batch: x.batch.first().copied().unwrap_or(0),
            alignment: x.alignment,
        })
    }
}

pub(super) struct Descriptor(pub(super) sys::cublasLtMatmulDesc_t);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: owned, destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

impl Descriptor {
    pub(super) fn set<T>(&mut self, attribute: Attribute, value: T) -> std::result::Result<(), CublasError> {
        // SAFETY: the descriptor is alive; the attribute's value is read from `value`, of its size.
        unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, (&raw const value).cast(), size_of::<T>())
        }
    }
}

pub(super) struct LayoutDescriptor(pub(super) sys::cublasLtMatrixLayout_t);

impl Drop for LayoutDescriptor {
    fn drop(&mut self) {
        // SAFETY: owned, destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

impl LayoutDescriptor {
    /// `sizes` are the rows and columns that the product sees.
    pub(super) fn new(
        dtype: DType,
        sizes: [usize; 2],
        side: &Side,
        batches: usize,
    ) -> std::result::Result<LayoutDescriptor, CublasError> {
        use sys::cublasLtMatrixLayoutAttribute_t::*;
        let [rows, cols] = if side.transposed { [sizes[1], sizes[0]] } else { sizes };
        let layout = LayoutDescriptor(result::create_matrix_layout(
            data_type(dtype),
            rows as u64,
            cols as u64,
            side.leading as i64,
        )?);
        if batches > 1 {
            let (count, step) = (batches as i32, side.batch as i64);
            // SAFETY: the layout is alive; the values have the attributes' sizes.
            unsafe {
                let count = (&raw const count).cast();
                result::set_matrix_layout_attribute(layout.0, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count, 4)?;
                let step = (&raw const step).cast();
                let attribute = CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
                result::set_matrix_layout_attribute(layout.0, attribute, step, 8)?;
            }
        }
        Ok(layout)
    }
}

pub(super) struct Preference(pub(super) sys::cublasLtMatmulPreference_t);

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: owned, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

impl Preference {
    pub(super) fn set<T>(
        &mut self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: T,
    ) -> std::result::Result<(), CublasError> {
        // SAFETY: the preference is alive; the attribute's value is read from `value`, of its size.
        unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, (&raw const value).cast(), size_of::<T>())
        }
    }
}

pub(super) fn data_type(dtype: DType) -> sys::cudaDataType {
    use sys::cudaDataType_t::*;
    match dtype {
        DType::F64 => CUDA_R_64F,
        DType::F16 => CUDA_R_16F,
        DType::BF16 => CUDA_R_16BF,
        _ => CUDA_R_32F,
    }
}
