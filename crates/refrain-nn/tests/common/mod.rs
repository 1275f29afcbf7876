//! The reference cases of `tests/reference`; `make.py` there describes them.
#![allow(dead_code, unused_imports)] // Each test file uses a part.

use refrain::{DType, Tensor};
pub use refrain_test::{assert_close, assert_within, device, gradcheck, sanitized, shortened, turn, values};
use safetensors::SafeTensors;
use serde_json::Value;

/// A file of reference cases.
pub struct Reference {
    bytes: &'static [u8],
    cases: Vec<Value>,
}

/// One case.
pub struct Case<'a> {
    tensors: SafeTensors<'a>,
    pub name: String,
    pub attrs: Value,
}

impl Reference {
    pub fn new(bytes: &'static [u8]) -> Reference {
        let (_, metadata) = SafeTensors::read_metadata(bytes).unwrap();
        let text = &metadata.metadata().as_ref().unwrap()["cases"];
        Reference { bytes, cases: serde_json::from_str(text).unwrap() }
    }

    /// The cases of one operation; there is at least one.
    pub fn of<'a>(&'a self, op: &'a str) -> impl Iterator<Item = Case<'a>> {
        assert!(self.cases.iter().any(|c| c["op"] == op), "no case of {op}");
        self.cases.iter().filter(move |c| c["op"] == op).map(|c| Case {
            tensors: SafeTensors::deserialize(self.bytes).unwrap(),
            name: c["name"].as_str().unwrap().to_string(),
            attrs: c["attrs"].clone(),
        })
    }
}

impl Case<'_> {
    pub fn has(&self, key: &str) -> bool {
        self.tensors.names().contains(&format!("{}/{key}", self.name).as_str())
    }

    pub fn shape(&self, key: &str) -> Vec<usize> {
        self.tensors.tensor(&format!("{}/{key}", self.name)).unwrap().shape().to_vec()
    }

    pub fn values(&self, key: &str) -> Vec<f64> {
        let view = self.tensors.tensor(&format!("{}/{key}", self.name)).unwrap();
        view.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn tensor(&self, key: &str, dtype: DType) -> Tensor {
        let whole = Tensor::from_slice(&self.values(key), self.shape(key), &device()).unwrap();
        whole.to_dtype(dtype).unwrap()
    }

    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let prefix = format!("{}/{prefix}", self.name);
        self.tensors.names().into_iter().filter_map(|n| n.strip_prefix(&prefix).map(String::from)).collect()
    }

    pub fn number(&self, key: &str) -> f64 {
        self.attrs[key].as_f64().unwrap_or_else(|| panic!("{}: no number {key}", self.name))
    }

    pub fn count(&self, key: &str) -> usize {
        self.attrs[key].as_u64().unwrap_or_else(|| panic!("{}: no count {key}", self.name)) as usize
    }

    pub fn flag(&self, key: &str) -> bool {
        self.attrs[key].as_bool().unwrap_or_else(|| panic!("{}: no flag {key}", self.name))
    }
}
