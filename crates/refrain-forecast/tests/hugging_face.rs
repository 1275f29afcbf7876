//! PatchTST beside that of Hugging Face's transformers, through its checkpoints. What is stored is said at the head of
//! `reference/hugging_face.py`; `REFRAIN_HUGGING_FACE` names another file of such cases.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use common::{device, devices};
use refrain::{DType, Device, Generator, Tensor};
use refrain_forecast::models::patchtst::hugging_face::{HuggingFace, export, renamed};
use refrain_forecast::models::patchtst::{
    Mode, NormKind, PatchTst, PatchTstConfig, PatchesFrom, Pooling, Positions,
};
use refrain_forecast::models::{Forecaster, initialise};
use refrain_forecast::tasks::forecasting::Levels;
use refrain_forecast::tasks::forecasting::loss::{Loss, StudentT};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

/// The cases of a file.
struct Cases {
    bytes: Vec<u8>,
    metadata: HashMap<String, String>,
}

/// A case: the options of its configuration, and its tensors by the kinds `weight`, `gradient` and none.
struct Case {
    name: String,
    options: Value,
    train: bool,
    /// How far transformers in f32 is from itself in f64: forecast and gradients.
    narrow: [f64; 2],
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>, safetensors::Dtype)>,
}

impl Cases {
    /// Those of the file that `REFRAIN_HUGGING_FACE` names, or else the stored ones.
    fn read() -> Vec<Case> {
        if let Some(path) = std::env::var_os("REFRAIN_HUGGING_FACE") {
            return Cases::of(Path::new(&path)).all();
        }
        // Found when the test runs, since programs are also copied to other machines.
        let folder =
            std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let of = |name: &str| Cases::of(&Path::new(&folder).join("tests/reference").join(name)).all();
        of("hugging_face.safetensors").into_iter().chain(of("hugging_face_student_t.safetensors")).collect()
    }

    fn of(path: &Path) -> Cases {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = metadata.metadata().clone().unwrap();
        Cases { bytes, metadata }
    }

    fn all(&self) -> Vec<Case> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let mut cases: BTreeMap<String, Case> = BTreeMap::new();
        for (name, view) in file.tensors() {
            let (case, tensor) = name.split_once('/').unwrap();
            let entry = cases.entry(case.to_owned()).or_insert_with(|| Case {
                name: case.to_owned(),
                options: serde_json::from_str(&self.metadata[case]).unwrap(),
                train: self.metadata[&format!("{case}/train")] == "true",
                narrow: serde_json::from_str(&self.metadata[&format!("{case}/narrow")]).unwrap(),
                tensors: BTreeMap::new(),
            });
            let tensor = (tensor.to_owned(), (view.shape().to_vec(), view.data().to_vec(), view.dtype()));
            entry.tensors.extend([tensor]);
        }
        cases.into_values().collect()
    }
}

impl Case {
    fn values(&self, name: &str) -> Option<Vec<f64>> {
        let (_, bytes, _) = self.tensors.get(name)?;
        Some(bytes.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect())
    }

    /// A tensor on a device.
    fn tensor(&self, name: &str, dtype: DType, device: &Device) -> Option<Tensor> {
        let values = self.values(name)?;
        let shape = &self.tensors[name].0[..];
        Some(Tensor::from_slice(&values, shape, device).unwrap().to_dtype(dtype).unwrap())
    }

    /// Contexts `[B, C, L]` of `[B, L, C]`.
    fn contexts(&self, name: &str, dtype: DType, device: &Device) -> Option<Tensor> {
        Some(self.tensor(name, dtype, device)?.transpose(1, 2).unwrap().contiguous().unwrap())
    }

    /// Writes the checkpoint into a folder.
    fn write(&self, folder: &Path) {
        let weights = self.tensors.iter().filter_map(|(name, (shape, bytes, dtype))| {
            let view = TensorView::new(*dtype, shape.clone(), bytes).unwrap();
            Some((name.strip_prefix("weight/")?, view))
        });
        write(folder, &self.options, weights.collect());
    }
}

/// Writes a checkpoint into a folder.
fn write(folder: &Path, options: &Value, weights: Vec<(&str, TensorView<'_>)>) {
    std::fs::write(folder.join("config.json"), options.to_string()).unwrap();
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = safetensors::serialize(weights, Some(metadata)).unwrap();
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

/// How far values are from others, relative to the largest of these, or to `least` if that is larger.
#[track_caller]
fn apart(what: &str, got: &[f64], expected: &[f64], least: f64) -> f64 {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(least, |most, value| most.max(value.abs()));
    let difference = |(a, b): (&f64, &f64)| (a - b).abs() / largest;
    got.iter()
        .zip(expected)
        .map(difference)
        .fold(0.0, |most: f64, d| if d.is_nan() { d } else { most.max(d) })
}

fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.detach().to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// The largest differences of the forecast and of the gradients of a case.
fn differences(case: &Case, dtype: DType, device: &Device) -> [f64; 2] {
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let checkpoint = HuggingFace::open(folder.path()).unwrap_or_else(|error| panic!("{error}"));
    let model = checkpoint.model(dtype, device, 0).unwrap();
    let x = case.contexts("x", dtype, device).unwrap();
    let observed = case.contexts("observed", dtype, device);
    let generator = Generator::new(device, 0).unwrap();
    let mode = if case.train { Mode::Train(&generator) } else { Mode::Eval };
    let forecast = model.forward_observed(&x, observed.as_ref(), mode).unwrap();
    let seed = case.contexts("seed", dtype, device).unwrap();
    forecast.mul(&seed).unwrap().sum(()).unwrap().backward().unwrap();
    let expected = values(&case.contexts("forecast", DType::F64, device).unwrap());
    let forward = apart("forecast", &values(&forecast), &expected, 0.0);
    let names: Vec<String> = model.parameters().names().map(str::to_owned).collect();
    let gradient = |name: &str| {
        let of_parameter = names.iter().any(|own| own == name);
        Ok(of_parameter.then(|| model.parameters().get(name).unwrap().grad().unwrap()))
    };
    let gradients = renamed(checkpoint.config(), checkpoint.distribution(), gradient).unwrap();
    let stored = case.tensors.keys().filter(|name| name.starts_with("gradient/")).count();
    assert_eq!(gradients.len(), stored, "gradients of case {}", case.name);
    // Some gradients are 0 but for rounding, such as those of the biases of keys.
    let all = |name: &str| {
        case.values(&format!("gradient/{name}")).unwrap_or_else(|| panic!("no gradient of {name}"))
    };
    let largest =
        gradients.iter().flat_map(|(name, _)| all(name)).fold(0.0, |most: f64, g| most.max(g.abs()));
    let of_each = gradients.iter().map(|(name, own)| apart(name, &values(own), &all(name), 0.01 * largest));
    [forward, of_each.fold(0.0, |most: f64, d| if d.is_nan() { d } else { most.max(d) })]
}

#[test]
fn forecasts_and_gradients_are_those_of_transformers() {
    let cases = Cases::read();
    for (dtype, limit) in [(DType::F64, 1e-10_f64), (DType::F32, 1e-5)] {
        for device in devices() {
            let (mut worst, mut beyond) = ([0.0_f64; 2], 0);
            for case in &cases {
                let found = differences(case, dtype, &device);
                for (at, part) in ["forecast", "gradients"].into_iter().enumerate() {
                    // Where transformers in f32 is far from itself in f64, the model amplifies rounding. A multiple of that,
                    // because PyTorch's batch norm adds up in f64 on a CPU.
                    let own = if dtype == DType::F32 { 20.0 * case.narrow[at] } else { 0.0 };
                    let (found, name, options) = (found[at], &case.name, &case.options);
                    assert!(
                        found <= limit.max(own),
                        "{part} {found:e} apart, case {name} in {dtype} on {device}: {options}"
                    );
                    worst[at] = worst[at].max(found);
                    beyond += usize::from(found > limit);
                }
            }
            let ([forecast, gradients], count) = (worst, cases.len());
            println!(
                "{count} cases, {dtype} on {device}: forecast {forecast:.1e}, gradients {gradients:.1e}, {beyond} beyond {limit:e}"
            );
        }
    }
}

/// The loss of transformers for a head that forecasts Student's t distribution.
#[test]
fn the_likelihood_of_students_t_distribution_is_that_of_transformers() {
    let loss = Loss::StudentT(StudentT { levels: Levels::NONE });
    let mut count = 0;
    for device in devices() {
        for case in Cases::read() {
            let Some(truth) = case.contexts("truth", DType::F64, &device) else { continue };
            let folder = tempfile::tempdir().unwrap();
            case.write(folder.path());
            let checkpoint = HuggingFace::open(folder.path()).unwrap();
            assert_eq!(
                (checkpoint.distribution(), checkpoint.config().horizon),
                (loss.distribution(), truth.dims()[2])
            );
            let model = checkpoint.model(DType::F64, &device, 0).unwrap();
            let x = case.contexts("x", DType::F64, &device).unwrap();
            let observed = case.contexts("observed", DType::F64, &device);
            let generator = Generator::new(&device, 0).unwrap();
            let mode = if case.train { Mode::Train(&generator) } else { Mode::Eval };
            let forecast = model.forward_observed(&x, observed.as_ref(), mode).unwrap();
            let nll = loss.mean(&forecast, &truth, None).unwrap().to_scalar::<f64>().unwrap();
            let expected = case.values("nll").unwrap()[0];
            assert!(
                (nll / expected - 1.0).abs() < 1e-9,
                "case {} on {device}: {nll} for {expected}",
                case.name
            );
            count += 1;
        }
    }
    assert!(count > 0 || std::env::var_os("REFRAIN_HUGGING_FACE").is_some());
}

/// A model with the options that not every checkpoint has.
fn config() -> PatchTstConfig {
    PatchTstConfig {
        channels: 3,
        patches_from: PatchesFrom::End,
        norm: NormKind::Batch,
        positions: Positions::Stored,
        pooling: Pooling::Cls,
        channel_attention: true,
        individual_embedding: true,
        individual_head: true,
        revin: true,
        revin_affine: false,
        ..PatchTstConfig::small(20, 6, 4, 8, 2, 2, 12, 5)
    }
}

fn build(config: PatchTstConfig, seed: u64) -> PatchTst {
    PatchTst::new(config, DType::F32, &device(), seed).unwrap()
}

#[test]
fn a_model_that_is_written_is_read_again_with_the_same_bits() {
    let shared = PatchTstConfig {
        channel_attention: false,
        individual_embedding: false,
        individual_head: false,
        norm: NormKind::Layer,
        positions: Positions::Learned,
        pooling: Pooling::Flatten,
        ffn_bias: false,
        ..config()
    };
    for config in [config(), shared] {
        let model = build(config.clone(), 7);
        let folder = tempfile::tempdir().unwrap();
        export(&config, None, model.parameters(), folder.path()).unwrap();
        let read = HuggingFace::open(folder.path()).unwrap();
        let again = read.model(DType::F32, &device(), 0).unwrap();
        for (name, tensor) in model.parameters().iter().chain(model.parameters().buffers()) {
            let other = again.parameters().get(name).unwrap();
            assert_eq!(other.to_vec::<f32>().unwrap(), tensor.to_vec::<f32>().unwrap(), "{name}");
        }
        let x = Generator::new(&device(), 3).unwrap().normal([2, 3, 20], DType::F32).unwrap();
        let forecast = |model: &PatchTst| values(&model.forward(&x, Mode::Eval).unwrap());
        assert_eq!(forecast(&again), forecast(&model));
        assert_eq!(again.weights_sha256().unwrap(), model.weights_sha256().unwrap());
    }
}

/// Names, shapes and options as transformers 5.23 writes them for such a model.
#[test]
fn what_is_written_has_the_names_shapes_and_options_of_transformers() {
    for case in Cases::read() {
        let (theirs, ours) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        case.write(theirs.path());
        let checkpoint = HuggingFace::open(theirs.path()).unwrap();
        let model = checkpoint.model(DType::F32, &device(), 0).unwrap();
        export(checkpoint.config(), checkpoint.distribution(), model.parameters(), ours.path()).unwrap();
        let bytes = std::fs::read(ours.path().join("model.safetensors")).unwrap();
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let written: BTreeMap<String, Vec<usize>> =
            file.tensors().into_iter().map(|(name, view)| (name, view.shape().to_vec())).collect();
        let of_weight = |(name, (shape, ..)): (&String, &(Vec<usize>, Vec<u8>, safetensors::Dtype))| {
            Some((name.strip_prefix("weight/")?.to_owned(), shape.clone()))
        };
        let expected: BTreeMap<String, Vec<usize>> = case.tensors.iter().filter_map(of_weight).collect();
        assert_eq!(written, expected, "case {}", case.name);
        let text = std::fs::read(ours.path().join("config.json")).unwrap();
        let options: Value = serde_json::from_slice(&text).unwrap();
        for (name, value) in options.as_object().unwrap() {
            // Two spellings of one meaning; a pooling beside a cls token has no influence; the dtype is that of the export.
            let same = match name.as_str() {
                "torch_dtype" => true,
                "scaling" => *value == case.options[name] || *value == "mean" && case.options[name] == true,
                "activation_function" if *value == "gelu_pytorch_tanh" => {
                    ["gelu_new", "gelu_pytorch_tanh"].iter().any(|known| case.options[name] == *known)
                }
                "pooling_type" if options["use_cls_token"] == true => true,
                _ => *value == case.options[name],
            };
            assert!(same, "case {}: {name} is {value}, not {}", case.name, case.options[name]);
        }
        let again = HuggingFace::open(ours.path()).unwrap();
        assert_eq!(again.config(), checkpoint.config());
    }
}

/// A checkpoint that `change` alters in a folder.
fn changed(
    change: impl FnOnce(&mut Value, &mut BTreeMap<String, (Vec<usize>, Vec<u8>)>),
) -> Result<HuggingFace, String> {
    let folder = tempfile::tempdir().unwrap();
    let model = build(PatchTstConfig { individual_embedding: false, individual_head: false, ..config() }, 7);
    export(model.config(), None, model.parameters(), folder.path()).unwrap();
    let text = std::fs::read(folder.path().join("config.json")).unwrap();
    let mut options: Value = serde_json::from_slice(&text).unwrap();
    let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let floats = file.tensors().into_iter().filter(|(_, view)| view.dtype() == safetensors::Dtype::F32);
    let mut weights =
        floats.map(|(name, view)| (name, (view.shape().to_vec(), view.data().to_vec()))).collect();
    change(&mut options, &mut weights);
    let views = weights.iter().map(|(name, (shape, bytes))| {
        (name.as_str(), TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    write(folder.path(), &options, views.collect());
    let opened = HuggingFace::open(folder.path()).map_err(|error| error.to_string())?;
    opened.tensors(DType::F32, &device()).map_err(|error| error.to_string())?;
    Ok(opened)
}

#[test]
fn other_models_and_options_are_refused_by_name() {
    changed(|_, _| {}).unwrap();
    let cases: &[(&str, Value, &[&str])] = &[
        ("architectures", json!(["PatchTSTForRegression"]), &["PatchTSTForRegression", "does not forecast"]),
        ("architectures", json!(["PatchTSTForClassification"]), &["PatchTSTForClassification"]),
        ("model_type", json!("patchtsmixer"), &["`model_type` is \"patchtsmixer\""]),
        ("scaling", json!("max"), &["`scaling` is \"max\""]),
        ("activation_function", json!("mish"), &["`activation_function` is \"mish\"", "silu"]),
        ("norm_type", json!("rmsnorm"), &["`norm_type` is \"rmsnorm\""]),
        ("pooling_type", json!("sum"), &["`pooling_type` is \"sum\""]),
        ("positional_encoding_type", json!("rope"), &["`positional_encoding_type` is \"rope\""]),
        ("minimum_scale", json!(0.5), &["`minimum_scale` is 0.5", "0.00001"]),
        ("rotary", json!(true), &["`rotary` is not an option"]),
        ("encoder_layers", json!(3), &["`encoder_layers`", "before it was part of transformers"]),
        ("shared_embedding", json!(true), &["`shared_embedding`"]),
        ("d_model", json!(-8), &["`d_model` is -8"]),
        ("d_model", json!(9), &["not possible", "heads do not divide"]),
        ("d_model", json!(1 << 20), &["configuration says floats of shape"]),
        ("num_hidden_layers", json!(1 << 24), &["more tensors than the"]),
        ("num_hidden_layers", json!(1), &["`model.encoder.layers.1.", "and"]),
        ("num_input_channels", json!(2.5), &["`num_input_channels` is 2.5"]),
        ("pre_norm", json!("yes"), &["`pre_norm` is \"yes\""]),
    ];
    let of_distribution = |name: &'static str| {
        move |options: &mut Value| {
            (options["loss"], options["distribution_output"]) = (json!("nll"), json!(name));
        }
    };
    for (name, part) in
        [("normal", "`distribution_output` is \"normal\""), ("student_t", "head.projection.proj.0")]
    {
        // That of the model has one value in each row.
        let message = changed(|options, _| of_distribution(name)(options)).err().unwrap();
        assert!(message.contains(part), "{message}");
    }
    let message = changed(|options, _| {
        of_distribution("student_t")(options);
        options["share_projection"] = json!(false);
    });
    assert!(message.err().unwrap().contains("`share_projection` is false"));
    for (option, value, parts) in cases {
        let change = |options: &mut Value| {
            // Beside a cls token, pooling has no influence.
            options["use_cls_token"] = json!(*option != "pooling_type");
            options[*option] = value.clone();
        };
        let message = changed(|options, _| change(options)).err();
        let message = message.unwrap_or_else(|| panic!("{option} {value} is not refused"));
        assert!(parts.iter().all(|part| message.contains(part)), "{option}: {message}");
    }
    // Options without an influence on a forecast.
    changed(|options, _| {
        (options["dropout"], options["mask_value"], options["id2label"]) = (json!(0.3), json!(2), json!({}));
    })
    .unwrap();
}

#[test]
fn other_weights_are_refused_by_name() {
    const CLS: &str = "model.encoder.positional_encoder.cls_token";
    let message = changed(|_, weights| drop(weights.remove(CLS))).err().unwrap();
    assert!(
        message.contains(&format!("it lacks `{CLS}`")) && message.contains("save_pretrained"),
        "{message}"
    );
    let message = changed(|_, weights| {
        let tensor = weights.remove(CLS).unwrap();
        weights.insert("model.backbone.W_pos".to_owned(), tensor);
    });
    let message = message.err().unwrap();
    assert!(message.contains("`model.backbone.W_pos`, which the model"), "{message}");
    let message = changed(|_, weights| weights.get_mut(CLS).unwrap().0 = vec![8]).err().unwrap();
    assert!(message.contains(CLS) && message.contains("[1, 1, 1, 8]"), "{message}");
    let message = changed(|_, weights| {
        weights.get_mut(CLS).unwrap().1[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    assert!(message.err().unwrap().contains("has the value NaN"));
}

#[test]
fn pickles_and_folders_without_a_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let message = || HuggingFace::open(folder.path()).err().unwrap().to_string();
    assert!(message().contains("no config.json"));
    std::fs::write(folder.path().join("config.json"), "[1]").unwrap();
    assert!(message().contains("not the configuration of a model"));
    let options = json!({ "model_type": "patchtst", "architectures": ["PatchTSTForPrediction"] });
    std::fs::write(folder.path().join("config.json"), options.to_string()).unwrap();
    assert!(message().contains("no model.safetensors"));
    std::fs::write(folder.path().join("pytorch_model.bin"), "pickle").unwrap();
    assert!(message().contains("a pickle") && message().contains("save_pretrained"));
}

/// The head of masked pretraining is left out, and a new one is random.
#[test]
fn a_pretrained_model_gets_a_new_head() {
    let of_pretraining = |options: &mut Value, weights: &mut BTreeMap<String, (Vec<usize>, Vec<u8>)>| {
        (options["architectures"], options["do_mask_input"]) =
            (json!(["PatchTSTForPretraining"]), json!(true));
        weights.retain(|name, _| !name.starts_with("head."));
        weights.insert("head.linear.weight".to_owned(), (vec![6, 8], vec![0; 192]));
        weights.insert("head.linear.bias".to_owned(), (vec![6], vec![0; 24]));
    };
    let checkpoint = changed(of_pretraining).unwrap();
    assert!(!checkpoint.has_head());
    let first = checkpoint.model(DType::F32, &device(), 1).unwrap();
    let second = checkpoint.model(DType::F32, &device(), 2).unwrap();
    let of = |model: &PatchTst, name: &str| values(model.parameters().get(name).unwrap());
    assert_ne!(of(&first, "head.weight"), of(&second, "head.weight"));
    assert_eq!(of(&first, "layers.1.attn.qkv.weight"), of(&second, "layers.1.attn.qkv.weight"));
    let kept = initialise(first.parameters(), &checkpoint.tensors(DType::F32, &device()).unwrap()).unwrap();
    assert_eq!(kept, ["head.weight", "head.bias"]);
}

#[test]
fn models_that_transformers_does_not_have_are_not_written() {
    let good = config();
    type Change = fn(&mut PatchTstConfig);
    let cases: [(Change, &str); 6] = [
        (|c| c.end_padding = true, "--end-padding false"),
        (|c| c.revin_affine = true, "--revin-affine false"),
        (|c| c.residual_attention = true, "--residual-attention false"),
        (|c| c.norm = NormKind::Rms, "--norm batch"),
        (|c| c.patches_from = PatchesFrom::Start, "--patches-from end"),
        (|c| (c.context, c.patch) = (6, 6), "a shorter --patch"),
    ];
    for (change, fix) in cases {
        let mut config = good.clone();
        change(&mut config);
        let (model, folder) = (build(config.clone(), 7), tempfile::tempdir().unwrap());
        let message = export(&config, None, model.parameters(), folder.path()).unwrap_err().to_string();
        assert!(message.contains(fix), "{message}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
    // Patches from the start that fill the context are those from the end.
    let filled = PatchTstConfig { context: 22, patches_from: PatchesFrom::Start, ..good };
    let folder = tempfile::tempdir().unwrap();
    export(&filled, None, build(filled.clone(), 7).parameters(), folder.path()).unwrap();
}
