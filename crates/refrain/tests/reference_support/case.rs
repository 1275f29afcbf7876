//! Stored cases; the header of `tests/reference/make.py` describes the format.

use std::path::Path;

use refrain::{DType, Device, Tensor};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::nd::Nd;
use crate::common::tensor;

/// The dtype class of a stored array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Runs in the dtype under test.
    Float,
    I64,
    I32,
    Bool,
}

#[derive(Clone, Debug)]
pub struct Array {
    pub class: Class,
    pub nd: Nd,
}

impl Array {
    pub fn dtype(&self, float: DType) -> DType {
        match self.class {
            Class::Float => float,
            Class::I64 => DType::I64,
            Class::I32 => DType::I32,
            Class::Bool => DType::Bool,
        }
    }

    pub fn tensor(&self, float: DType, device: &Device) -> Tensor {
        tensor(&self.nd.data, &self.nd.dims[..], self.dtype(float), device)
    }
}

/// The way in which a base becomes an operand.
#[derive(Clone, Debug)]
pub enum View {
    Base,
    Permute(Vec<isize>),
    Narrow(isize, usize, usize),
    Broadcast(Vec<usize>),
}

impl View {
    pub fn of(&self, base: &Tensor) -> refrain::Result<Tensor> {
        match self {
            View::Base => Ok(base.clone()),
            View::Permute(order) => base.permute(order),
            View::Narrow(axis, start, len) => base.narrow(*axis, *start, *len),
            View::Broadcast(shape) => base.broadcast_to(&shape[..]),
        }
    }

    /// For each element of the view, the index of its element in the base.
    pub fn indices(&self, base: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let mut strides = super::nd::strides(base);
        let (mut dims, mut offset) = (base.to_vec(), 0);
        match self {
            View::Base => {}
            View::Permute(order) => {
                dims = order.iter().map(|&i| base[i as usize]).collect();
                strides = order.iter().map(|&i| strides[i as usize]).collect();
            }
            View::Narrow(axis, start, len) => {
                offset = start * strides[*axis as usize];
                dims[*axis as usize] = *len;
            }
            View::Broadcast(shape) => {
                let lead = shape.len() - base.len();
                strides = (0..shape.len())
                    .map(|i| if i < lead || base[i - lead] != shape[i] { 0 } else { strides[i - lead] })
                    .collect();
                dims = shape.clone();
            }
        }
        let mut at = vec![offset];
        for (&d, &s) in dims.iter().zip(&strides) {
            at = at.iter().flat_map(|&o| (0..d).map(move |i| o + i * s)).collect();
        }
        (dims, at)
    }
}

pub struct Case {
    pub name: String,
    pub op: String,
    pub attrs: Value,
    pub inputs: Vec<Array>,
    pub layout: Vec<View>,
    pub outputs: Vec<Array>,
    /// Cotangents of the outputs; `None` if an output is not differentiable.
    pub cotangents: Vec<Option<Nd>>,
    /// Gradients with respect to the bases; `None` if none is requested.
    pub gradients: Vec<Option<Nd>>,
    pub tag: Option<String>,
}

impl Case {
    /// A number attribute.
    pub fn f(&self, key: &str) -> f64 {
        self.attrs[key].as_f64().unwrap_or_else(|| panic!("{}: attribute {key} is no number", self.name))
    }

    pub fn has(&self, key: &str) -> bool {
        !self.attrs[key].is_null()
    }

    pub fn b(&self, key: &str) -> bool {
        self.attrs[key].as_bool().unwrap_or_else(|| panic!("{}: attribute {key} is no bool", self.name))
    }

    pub fn i(&self, key: &str) -> isize {
        self.attrs[key].as_i64().unwrap_or_else(|| panic!("{}: attribute {key} is no integer", self.name))
            as isize
    }

    pub fn u(&self, key: &str) -> usize {
        self.i(key) as usize
    }

    pub fn s(&self, key: &str) -> &str {
        self.attrs[key].as_str().unwrap_or_else(|| panic!("{}: attribute {key} is no text", self.name))
    }

    pub fn list<T>(&self, key: &str, f: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        let items = self.attrs[key].as_array().unwrap_or_else(|| panic!("{}: {key} is no list", self.name));
        items.iter().map(|v| f(v).unwrap()).collect()
    }

    pub fn shape(&self, key: &str) -> Vec<usize> {
        self.list(key, |v| v.as_u64().map(|n| n as usize))
    }

    /// The axes of a reduction; all axes if the attribute is null.
    pub fn axes(&self) -> Vec<isize> {
        match self.attrs["axes"].is_null() {
            true => (0..self.operand(0).dims.len() as isize).collect(),
            false => self.list("axes", |v| v.as_i64().map(|n| n as isize)),
        }
    }

    /// Operand `i`: its base in its layout.
    pub fn operand(&self, i: usize) -> Nd {
        let base = &self.inputs[i].nd;
        let (dims, at) = self.layout[i].indices(&base.dims);
        Nd { dims, data: at.iter().map(|&j| base.data[j]).collect() }
    }

    /// The cotangent of output `o`.
    pub fn cotangent(&self, o: usize) -> &Nd {
        self.cotangents[o].as_ref().unwrap_or_else(|| panic!("{}: no cotangent", self.name))
    }
}

/// All cases of one file.
pub fn load(path: &Path) -> Vec<Case> {
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let list: Value = serde_json::from_str(&header.metadata().as_ref().unwrap()["cases"]).unwrap();
    let read = |name: String| -> Option<Array> {
        let t = file.tensor(&name).ok()?;
        let (class, data): (Class, Vec<f64>) = match t.dtype() {
            Dtype::F64 => (Class::Float, numbers(t.data(), f64::from_le_bytes)),
            Dtype::I64 => (Class::I64, numbers(t.data(), |b| i64::from_le_bytes(b) as f64)),
            Dtype::I32 => (Class::I32, numbers(t.data(), |b| i32::from_le_bytes(b) as f64)),
            Dtype::U8 => (Class::Bool, numbers(t.data(), |b: [u8; 1]| b[0] as f64)),
            other => panic!("{name}: dtype {other:?} is not part of the format"),
        };
        Some(Array { class, nd: Nd { dims: t.shape().to_vec(), data } })
    };
    let cases = list.as_array().unwrap();
    cases
        .iter()
        .map(|c| {
            let name = c["name"].as_str().unwrap().to_string();
            let (n, m) = (c["inputs"].as_u64().unwrap() as usize, c["outputs"].as_u64().unwrap() as usize);
            let need = |what: &str, i: usize| {
                read(format!("{name}/{what}{i}"))
                    .unwrap_or_else(|| panic!("{name}: no {what}{i} in the file"))
            };
            let diff: Vec<bool> =
                c["diff"].as_array().unwrap().iter().map(|d| d.as_bool().unwrap()).collect();
            Case {
                inputs: (0..n).map(|i| need("in", i)).collect(),
                outputs: (0..m).map(|o| need("out", o)).collect(),
                cotangents: (0..m).map(|o| read(format!("{name}/grad_out{o}")).map(|a| a.nd)).collect(),
                gradients: (0..n).map(|i| diff[i].then(|| need("grad_in", i).nd)).collect(),
                layout: c["layout"].as_array().unwrap().iter().map(view).collect(),
                op: c["op"].as_str().unwrap().to_string(),
                attrs: c["attrs"].clone(),
                tag: c["tag"].as_str().map(str::to_string),
                name,
            }
        })
        .collect()
}

fn view(v: &Value) -> View {
    let numbers =
        |v: &Value| -> Vec<i64> { v.as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect() };
    if v.is_null() {
        return View::Base;
    }
    let (kind, arguments) = v.as_object().unwrap().iter().next().unwrap();
    let n = numbers(arguments);
    match kind.as_str() {
        "permute" => View::Permute(n.into_iter().map(|i| i as isize).collect()),
        "narrow" => View::Narrow(n[0] as isize, n[1] as usize, n[2] as usize),
        "broadcast" => View::Broadcast(n.into_iter().map(|i| i as usize).collect()),
        other => panic!("layout {other} is not part of the format"),
    }
}

fn numbers<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f64) -> Vec<f64> {
    bytes.as_chunks::<N>().0.iter().map(|&b| f(b)).collect()
}
