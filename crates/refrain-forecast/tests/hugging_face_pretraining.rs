//! Masked pretraining beside that of Hugging Face's transformers (`PatchTSTForPretraining`, in f64). What is stored is said at the
//! head of `reference/hugging_face.py`.

mod common;

use std::path::Path;

use common::devices;
use refrain::{DType, Device, Generator, Tensor};
use refrain_forecast::models::initialise;
use refrain_forecast::models::patchtst::hugging_face::{HuggingFace, renamed};
use refrain_forecast::models::patchtst::{MaskedPatchTst, Mode};
use refrain_nn::Weights;
use safetensors::SafeTensors;

/// The stored cases.
struct Cases {
    weights: Weights,
    metadata: std::collections::HashMap<String, String>,
}

impl Cases {
    fn read() -> Cases {
        // Found when the test runs, since programs are also copied to other machines.
        let folder =
            std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let path = Path::new(&folder).join("tests/reference/hugging_face_pretraining.safetensors");
        let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        Cases { weights: Weights::open(&path).unwrap(), metadata: metadata.metadata().clone().unwrap() }
    }

    fn tensor(&self, name: &str, device: &Device) -> Tensor {
        self.weights.tensor(name, device).unwrap()
    }

    /// The names of the tensors of a kind of a case, without what comes before them.
    fn names(&self, before: &str) -> Vec<&str> {
        self.weights.names().filter_map(|name| name.strip_prefix(before)).collect()
    }

    /// The model of a case, with its weights.
    fn model(&self, case: &str, device: &Device) -> MaskedPatchTst {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), &self.metadata[case]).unwrap();
        let before = format!("{case}/weight/");
        let of_host = |name: &str| self.tensor(&format!("{before}{name}"), &Device::cpu());
        let weights: Vec<(&str, Tensor)> =
            self.names(&before).into_iter().map(|name| (name, of_host(name))).collect();
        let path = folder.path().join("model.safetensors");
        Weights::write(path, weights.iter().map(|(name, tensor)| (*name, tensor))).unwrap();
        let checkpoint = HuggingFace::open(folder.path()).unwrap_or_else(|error| panic!("{error}"));
        let model = MaskedPatchTst::new(checkpoint.config().clone(), DType::F64, device, 1).unwrap();
        let mut tensors = checkpoint.tensors(DType::F64, device).unwrap();
        // What a forecaster leaves out is wanted here.
        for part in ["weight", "bias"] {
            tensors
                .push((format!("head.{part}"), self.tensor(&format!("{before}head.linear.{part}"), device)));
        }
        assert!(initialise(model.parameters(), &tensors).unwrap().is_empty());
        model
    }
}

/// How far values are from others, relative to the largest of these, or to `least` if that is larger.
#[track_caller]
fn apart(what: &str, got: &Tensor, expected: &Tensor, least: f64) -> f64 {
    assert_eq!(got.dims(), expected.dims(), "{what}");
    let [got, expected] =
        [got, expected].map(|of| of.detach().contiguous().unwrap().to_vec::<f64>().unwrap());
    let largest = expected.iter().fold(least, |most, value| most.max(value.abs()));
    let differences = got.iter().zip(&expected).map(|(a, b)| (a - b).abs() / largest);
    differences.fold(0.0, |most: f64, d| if d.is_nan() { d } else { most.max(d) })
}

#[test]
fn errors_and_gradients_of_hidden_patches_are_those_of_transformers() {
    const LIMIT: f64 = 1e-10;
    let cases = Cases::read();
    let of_options = |name: &&String| !name.contains('/') && name.parse::<usize>().is_ok();
    let names: Vec<&String> = cases.metadata.keys().filter(of_options).collect();
    assert_eq!(names.len(), 10);
    for device in devices() {
        for case in &names {
            let of = |name: &str| cases.tensor(&format!("{case}/{name}"), &device);
            let what = |part: &str| format!("{part} of case {case} on {device}: {}", cases.metadata[*case]);
            let model = cases.model(case, &device);
            let x = of("x").transpose(1, 2).unwrap().contiguous().unwrap();
            let hidden = of("hidden");
            let generator = Generator::new(&device, 0).unwrap();
            let is_training = cases.metadata[&format!("{case}/train")] == "true";
            let mode = if is_training { Mode::Train(&generator) } else { Mode::Eval };
            let errors = model.errors(&x, &hidden, mode).unwrap();
            let found = apart(&what("errors"), &errors, &of("errors"), 0.0);
            assert!(found < LIMIT, "{found:e}: {}", what("errors"));

            let &[batch, channels, patches, patch] = errors.dims() else { panic!("{}", errors.shape()) };
            let counted = errors.mul(&hidden.reshape([batch, channels, patches, 1]).unwrap()).unwrap();
            let count = hidden.sum(()).unwrap().to_scalar::<f64>().unwrap() * patch as f64;
            let loss = counted.sum(()).unwrap().mul_scalar(1.0 / count).unwrap();
            assert!(apart(&what("loss"), &loss, &of("loss"), 0.0) < LIMIT, "{}", what("loss"));
            loss.backward().unwrap();
            let parameters = model.parameters();
            let gradient = |name: &str| parameters.get(name).unwrap().grad().unwrap();
            let is_trained = |name: &str| parameters.names().any(|own| own == name);
            let of_encoder =
                |name: &str| Ok((is_trained(name) && !name.starts_with("head.")).then(|| gradient(name)));
            let mut gradients = renamed(model.config(), None, of_encoder).unwrap();
            let of_head = |part| (format!("head.linear.{part}"), gradient(&format!("head.{part}")));
            gradients.extend(["weight", "bias"].map(of_head));
            let stored = cases.names(&format!("{case}/gradient/"));
            assert_eq!(gradients.len(), stored.len(), "{}", what("gradients"));
            // Some gradients are 0 but for rounding, such as those of the biases of keys.
            let all = |name: &&str| of(&format!("gradient/{name}")).to_vec::<f64>().unwrap();
            let largest = stored.iter().flat_map(all).fold(0.0, |most: f64, value| most.max(value.abs()));
            for (name, own) in &gradients {
                let found = apart(&what(name), own, &of(&format!("gradient/{name}")), 0.01 * largest);
                assert!(found < LIMIT, "{found:e}: {}", what(name));
            }
        }
    }
}
