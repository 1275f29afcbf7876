//! Weights of other programs: read by name, converted when asked, from one file or several; and written for them.

mod common;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use common::{device, values};
use refrain::{DType, Generator, Profile, Simulator, Tensor, bf16, f16, no_grad};
use refrain_nn::checkpoint::{self, CONFIG, INDEX, TENSORS};
use refrain_nn::{
    AdamW, Checkpoint, Init, Linear, LoadOptions, Optimizer, ParameterBuilder, Parameters, Snapshot,
    Unmatched, Weights,
};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use tempfile::tempdir;

const STRICT: LoadOptions = LoadOptions { strict: true, convert: false };

/// `hidden` (3 to 2), `head` (2 to 1) and the buffer `scale`.
fn model(dtype: DType, seed: u64) -> Parameters {
    let builder = ParameterBuilder::new(&device(), dtype);
    Linear::new(&builder.scope("hidden"), 3, 2).unwrap();
    Linear::new(&builder.scope("head"), 2, 1).unwrap();
    builder.buffer("scale", 1, Init::Constant(1.0)).unwrap();
    builder.build(&Generator::new(&device(), seed).unwrap()).unwrap()
}

/// A tensor of a file: name, dtype, shape, bytes.
type Stored = (&'static str, Dtype, Vec<usize>, Vec<u8>);

/// Multiples of 1/8 are exact in every float dtype.
fn eighths(n: usize) -> Vec<f64> {
    (0..n).map(|i| i as f64 / 8.0 - 0.25).collect()
}

fn of<const N: usize>(values: &[f64], bytes: impl Fn(f64) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&v| bytes(v)).collect()
}

/// What another program may have written: other names, another dtype for each tensor.
fn theirs() -> Vec<Stored> {
    vec![
        ("net.0.weight", Dtype::F16, vec![2, 3], of(&eighths(6), |v| f16::from_f64(v).to_le_bytes())),
        ("net.0.bias", Dtype::BF16, vec![2], of(&eighths(2), |v| bf16::from_f64(v).to_le_bytes())),
        ("net.2.weight", Dtype::F64, vec![1, 2], of(&[0.1, -3.0], f64::to_le_bytes)),
        ("net.2.bias", Dtype::F32, vec![1], of(&[7.0], |v| (v as f32).to_le_bytes())),
        ("scale", Dtype::F32, vec![1], of(&[0.5], |v| (v as f32).to_le_bytes())),
    ]
}

fn renamed(name: &str) -> String {
    name.replace("hidden.", "net.0.").replace("head.", "net.2.")
}

fn file(path: &Path, tensors: &[Stored]) {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Tensors over several files, with the index in `folder`.
fn sharded(folder: &Path, parts: &[&[Stored]]) -> PathBuf {
    let mut map = serde_json::Map::new();
    for (i, part) in parts.iter().enumerate() {
        let name = format!("model-{i}.safetensors");
        file(&folder.join(&name), part);
        part.iter().for_each(|(tensor, ..)| drop(map.insert((*tensor).to_owned(), json!(name))));
    }
    let index = folder.join(INDEX);
    fs::write(&index, json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string()).unwrap();
    index
}

fn all(parameters: &Parameters) -> Vec<(String, Vec<f64>)> {
    parameters.iter().chain(parameters.buffers()).map(|(name, t)| (name.to_owned(), values(t))).collect()
}

fn expected() -> Vec<(String, Vec<f64>)> {
    let own = [
        ("hidden.weight", eighths(6)),
        ("hidden.bias", eighths(2)),
        ("head.weight", vec![f64::from(0.1f32), -3.0]),
        ("head.bias", vec![7.0]),
        ("scale", vec![0.5]),
    ];
    own.into_iter().map(|(name, values)| (name.to_owned(), values)).collect()
}

/// The load fails, says all of `parts`, and changes nothing.
#[track_caller]
fn refused(path: &Path, options: LoadOptions, parts: &[&str]) {
    let parameters = model(DType::F32, 1);
    let before = all(&parameters);
    let message = parameters.load_safetensors(path, renamed, options).unwrap_err().to_string();
    for part in parts {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
    assert_eq!(all(&parameters), before);
}

#[test]
fn what_was_saved_is_read_back_bit_for_bit_by_refrain_and_by_others() {
    let folder = tempdir().unwrap();
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let path = folder.path().join(format!("{dtype}.safetensors"));
        let (first, second) = (model(dtype, 1), model(dtype, 2));
        first.save_safetensors(&path).unwrap();
        assert_ne!(all(&first), all(&second));
        assert_eq!(second.load_safetensors(&path, str::to_owned, STRICT).unwrap(), Unmatched::default());
        assert_eq!(all(&first), all(&second));
        let bytes = fs::read(&path).unwrap();
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(theirs.tensor("hidden.weight").unwrap().shape(), [2, 3]);
        assert_eq!(theirs.names().len(), 5);
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(metadata.metadata(), &Some(HashMap::from([("format".to_owned(), "pt".to_owned())])));
    }
}

#[test]
fn other_names_and_dtypes_are_mapped_and_converted_when_asked() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("theirs.safetensors");
    file(&path, &theirs());
    let convert = LoadOptions { convert: true, ..STRICT };
    let parameters = model(DType::F32, 1);
    // Gradients and the flat buffer stay where they are.
    let place = parameters.get("head.weight").unwrap().storage_id();
    assert_eq!(parameters.load_safetensors(&path, renamed, convert).unwrap(), Unmatched::default());
    assert_eq!(all(&parameters), expected());
    assert_eq!(parameters.get("head.weight").unwrap().storage_id(), place);
    assert!(parameters.get("head.weight").unwrap().requires_grad());
    refused(
        &path,
        STRICT,
        &["`net.0.weight` is F16 [2, 3]", "`hidden.weight` is f32", "LoadOptions::convert"],
    );
    // 0.1 of the file is rounded once.
    let halves = model(DType::F16, 1);
    halves.load_safetensors(&path, renamed, convert).unwrap();
    assert_eq!(values(halves.get("head.weight").unwrap()), [f16::from_f64(0.1).to_f64(), -3.0]);
}

#[test]
fn an_index_names_the_files() {
    let folder = tempdir().unwrap();
    let stored = theirs();
    let index = sharded(folder.path(), &[&stored[..2], &stored[2..]]);
    let convert = LoadOptions { convert: true, ..STRICT };
    for path in [index.as_path(), folder.path()] {
        let parameters = model(DType::F32, 1);
        parameters.load_safetensors(path, renamed, convert).unwrap();
        assert_eq!(all(&parameters), expected());
    }
    // A file alone is a part.
    refused(
        &folder.path().join("model-0.safetensors"),
        convert,
        &["lacks `net.2.weight` (for `head.weight`)"],
    );
    let write = |map: serde_json::Value| fs::write(&index, json!({ "weight_map": map }).to_string()).unwrap();
    write(json!({ "scale": "model-0.safetensors" }));
    refused(&index, convert, &["`scale` is not in model-0.safetensors"]);
    write(json!({ "scale": "../model-0.safetensors" }));
    refused(&index, convert, &["`../model-0.safetensors`", "beside the index"]);
    write(json!({ "scale": ".." }));
    refused(&index, convert, &["beside the index"]);
    write(json!({ "scale": "model-7.safetensors" }));
    refused(&index, convert, &["cannot read", "model-7.safetensors"]);
    fs::write(&index, "[]").unwrap();
    refused(&index, convert, &["not an index", "weight_map"]);
    let empty = tempdir().unwrap();
    refused(empty.path(), convert, &[TENSORS, INDEX]);
}

#[test]
fn names_that_differ_are_an_error_or_listed() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("theirs.safetensors");
    let mut stored = theirs();
    stored.remove(0);
    stored.push(("net.num_batches_tracked", Dtype::I64, vec![], 3i64.to_le_bytes().to_vec()));
    file(&path, &stored);
    let convert = LoadOptions { convert: true, ..STRICT };
    refused(
        &path,
        convert,
        &[
            "the file lacks `net.0.weight` (for `hidden.weight`)",
            "the model lacks `net.num_batches_tracked`",
            "LoadOptions::strict",
        ],
    );
    let parameters = model(DType::F32, 1);
    let kept = values(parameters.get("hidden.weight").unwrap());
    let lax = LoadOptions { strict: false, ..convert };
    let unmatched = parameters.load_safetensors(&path, renamed, lax).unwrap();
    assert_eq!(unmatched.missing, ["hidden.weight"]);
    assert_eq!(unmatched.unused, ["net.num_batches_tracked"]);
    assert_eq!(values(parameters.get("hidden.weight").unwrap()), kept);
    assert_eq!(values(parameters.get("hidden.bias").unwrap()), eighths(2));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("theirs.safetensors");
    let convert = LoadOptions { convert: true, strict: false };
    let changed = |at: usize, dtype: Dtype, shape: &[usize], bytes: Vec<u8>| {
        let mut stored = theirs();
        stored[at] = (stored[at].0, dtype, shape.to_vec(), bytes);
        file(&path, &stored);
    };
    changed(0, Dtype::F32, &[3, 2], vec![0; 24]);
    refused(&path, convert, &["`net.0.weight` is F32 [3, 2]", "`hidden.weight` is f32 [2, 3]"]);
    changed(1, Dtype::I64, &[2], vec![0; 16]);
    refused(&path, convert, &["`net.0.bias` is I64 [2]", "only floats are converted"]);
    changed(2, Dtype::F64, &[1, 2], of(&[1.0, -1e300], f64::to_le_bytes));
    refused(&path, convert, &["element 1 of tensor `net.2.weight` is -1e300", "f32 can't hold"]);
    changed(2, Dtype::F64, &[1, 2], of(&[f64::NAN, 0.0], f64::to_le_bytes));
    refused(&path, convert, &["element 0 of tensor `net.2.weight` is NaN"]);
    fs::write(&path, b"no safetensors").unwrap();
    refused(&path, convert, &["not a whole safetensors file"]);
}

#[test]
fn a_tensor_is_read_by_its_name_in_its_dtype() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("any.safetensors");
    let mut stored = theirs();
    stored.push(("ids", Dtype::I64, vec![2], [5i64, -6].iter().flat_map(|v| v.to_le_bytes()).collect()));
    stored.push(("flags", Dtype::BOOL, vec![2], vec![0, 1]));
    stored.push(("words", Dtype::U16, vec![1], vec![1, 0]));
    file(&path, &stored);
    let weights = Weights::open(&path).unwrap();
    let ids = weights.tensor("ids", &device()).unwrap();
    assert_eq!((ids.dims(), ids.to_vec::<i64>().unwrap()), (&[2][..], vec![5, -6]));
    assert_eq!(weights.tensor("flags", &device()).unwrap().to_vec::<bool>().unwrap(), [false, true]);
    let halves = weights.tensor("net.0.bias", &device()).unwrap();
    assert_eq!((halves.dtype(), values(&halves)), (DType::BF16, eighths(2)));
    let says = |name: &str, part: &str| {
        let message = weights.tensor(name, &device()).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    says("words", "`words` is U16");
    says("other", "there is no tensor `other`");
}

#[test]
fn a_checkpoint_gives_its_model_and_weights_are_no_checkpoint() {
    let folder = tempdir().unwrap();
    let parameters = model(DType::F32, 1);
    let schedule = refrain::optim::Schedule::Constant { lr: 0.1 };
    let optimizer = AdamW::new(&parameters, refrain::optim::AdamWOptions::default(), schedule).unwrap();
    optimizer.step().unwrap();
    let snapshot = Snapshot {
        parameters: &parameters,
        optimizer: Some(&optimizer),
        generators: &[],
        ema: None,
        config: json!(null),
    };
    checkpoint::save(folder.path(), &snapshot).unwrap();
    assert!(folder.path().join(CONFIG).exists());
    let other = model(DType::F32, 2);
    other.load_safetensors(folder.path(), str::to_owned, STRICT).unwrap();
    assert_eq!(all(&other), all(&parameters));

    parameters.save_safetensors(folder.path().join(TENSORS)).unwrap();
    let message = Checkpoint::open(folder.path()).err().unwrap().to_string();
    assert!(message.contains("Parameters::load_safetensors"), "{message}");
    // A file, and a folder of weights in parts.
    let file = folder.path().join(TENSORS);
    let parts = tempdir().unwrap();
    std::fs::write(parts.path().join("model.safetensors.index.json"), "{}").unwrap();
    for path in [file.as_path(), parts.path()] {
        let message = Checkpoint::open(path).err().unwrap().to_string();
        assert!(message.contains("Parameters::load_safetensors"), "{message}");
    }
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let parameters = model(DType::F32, 1);
    parameters.save_safetensors(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    no_grad(|| parameters.get("head.bias").unwrap().fill(f64::INFINITY)).unwrap();
    let message = parameters.save_safetensors(&path).unwrap_err().to_string();
    assert!(message.contains("element 0 of `head.bias` is inf"), "{message}");
    assert_eq!(fs::read(&path).unwrap(), whole);
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["weights.safetensors"]);
    let nowhere = folder.path().join("missing").join("weights.safetensors");
    assert!(model(DType::F32, 1).save_safetensors(&nowhere).unwrap_err().to_string().contains("missing"));
}

#[test]
fn a_recorded_step_reads_what_was_loaded() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let (first, second) = (model(DType::F32, 1), model(DType::F32, 2));
    first.save_safetensors(&path).unwrap();
    let weight = second.get("hidden.weight").unwrap();
    let mut step = refrain::Step::new(&device(), |_| Ok(vec![weight.detach().square()?.sum(())?]));
    let sum = |t: &Tensor| t.detach().square().unwrap().sum(()).unwrap().to_scalar::<f32>().unwrap();
    assert_eq!(step.call(&[]).unwrap().to_scalar::<f32>(0).unwrap(), sum(weight));
    second.load_safetensors(&path, str::to_owned, STRICT).unwrap();
    let after = step.call(&[]).unwrap().to_scalar::<f32>(0).unwrap();
    assert_eq!(after, sum(first.get("hidden.weight").unwrap()));
    step.finish().unwrap();
}

/// More than one piece of a copy: `wide` (1,500 to 1,501) and `head` (1,501 to 1).
fn wide(dtype: DType, seed: u64) -> Parameters {
    let builder = ParameterBuilder::new(&device(), dtype);
    Linear::new(&builder.scope("wide"), 1500, 1501).unwrap();
    Linear::new(&builder.scope("head"), 1501, 1).unwrap();
    builder.build(&Generator::new(&device(), seed).unwrap()).unwrap()
}

#[test]
fn many_pieces_are_loaded_converted_and_checked_before_anything_changes() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let (theirs, own) = (wide(DType::F32, 1), wide(DType::F32, 2));
    theirs.save_safetensors(&path).unwrap();
    own.load_safetensors(&path, str::to_owned, STRICT).unwrap();
    assert!(all(&own) == all(&theirs));

    let narrow = wide(DType::BF16, 3);
    narrow.save_safetensors(&path).unwrap();
    own.load_safetensors(&path, str::to_owned, LoadOptions { convert: true, strict: true }).unwrap();
    assert!(all(&own) == all(&narrow));

    // The last element of the last tensor in the file is bad, and half a tensor is missing.
    theirs.save_safetensors(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let message = own.load_safetensors(&path, str::to_owned, STRICT).unwrap_err().to_string();
    assert!(message.contains("element 2251499 of tensor `wide.weight` is NaN"), "{message}");
    assert!(all(&own) == all(&narrow));
    fs::write(&path, &bytes[..end / 2]).unwrap();
    assert!(own.load_safetensors(&path, str::to_owned, STRICT).unwrap_err().to_string().contains("cut off"));
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_open_is_an_error() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    wide(DType::F32, 1).save_safetensors(&path).unwrap();
    let weights = Weights::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100_000).unwrap();
    let message = weights.tensor("wide.weight", &device()).unwrap_err().to_string();
    assert!(message.contains("became shorter"), "{message}");
}

#[test]
fn a_large_model_is_saved_in_pieces() {
    let folder = tempdir().unwrap();
    let (path, n) = (folder.path().join("large.safetensors"), (68 << 20) / 4 + 3);
    let numbers: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let large = Tensor::from_slice(&numbers, n, &device()).unwrap();
    Weights::write(&path, [("large", &large), ("one", &large.narrow(0, 7, 1).unwrap())]).unwrap();
    let bytes = fs::read(&path).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    let read = theirs.tensor("large").unwrap().data().as_chunks::<4>().0.iter();
    assert!(read.enumerate().all(|(i, &b)| f32::from_le_bytes(b) == i as f32));
    assert_eq!(theirs.tensor("one").unwrap().data(), 7f32.to_le_bytes());
    assert_eq!(bytes.len() % 4, 0);

    // With the checksum over all pieces.
    let builder = ParameterBuilder::new(&device(), DType::F32);
    builder.parameter("large", n, Init::Constant(0.5)).unwrap();
    let parameters = builder.build(&Generator::new(&device(), 1).unwrap()).unwrap();
    let snapshot =
        Snapshot { parameters: &parameters, optimizer: None, generators: &[], ema: None, config: json!(1) };
    checkpoint::save(folder.path(), &snapshot).unwrap();
    no_grad(|| parameters.values().fill(0.0)).unwrap();
    Checkpoint::open(folder.path()).unwrap().load(&parameters).unwrap();
    assert!(all(&parameters)[0].1.iter().all(|&v| v == 0.5));
}

#[test]
fn a_load_during_a_capture_or_a_recording_is_refused_and_changes_nothing() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    model(DType::F32, 1).save_safetensors(&path).unwrap();
    let (gpu, stream) = Simulator::new(Profile::Discrete).device_and_stream();
    let builder = ParameterBuilder::new(&gpu, DType::F32);
    Linear::new(&builder.scope("hidden"), 3, 2).unwrap();
    let parameters = builder.build(&Generator::new(&gpu, 2).unwrap()).unwrap();
    let before = all(&parameters);
    let loose = LoadOptions { strict: false, convert: false };
    stream.begin_capture().unwrap();
    let error = parameters.load_safetensors(&path, str::to_owned, loose).unwrap_err();
    let refused =
        matches!(&error, refrain_nn::Error::Tensor { error: refrain::Error::CaptureIncompatible { .. }, .. });
    assert!(refused, "{error}");
    stream.end_capture().unwrap();
    assert_eq!(all(&parameters), before);

    let mut step = refrain::Step::new(&gpu, |_| {
        let loaded = parameters.load_safetensors(&path, str::to_owned, loose);
        loaded.map_err(|e| match e {
            refrain_nn::Error::Tensor { error, .. } => error,
            other => panic!("{other}"),
        })?;
        Ok(vec![])
    });
    let message = step.call(&[]).err().unwrap().to_string();
    assert!(message.contains("write_pieces") && message.contains("copies values from the host"), "{message}");
    assert_eq!(all(&parameters), before);
    parameters.load_safetensors(&path, str::to_owned, loose).unwrap();
    assert_ne!(all(&parameters), before);
}

#[test]
fn a_checkpoint_with_tensors_without_elements_opens_each_time() {
    let folder = tempdir().unwrap();
    let builder = ParameterBuilder::new(&device(), DType::F32);
    for name in ["a", "b", "c", "d"] {
        builder.parameter(name, [0, 3], Init::Constant(0.0)).unwrap();
    }
    builder.parameter("e", 2, Init::Constant(0.5)).unwrap();
    let parameters = builder.build(&Generator::new(&device(), 1).unwrap()).unwrap();
    let snapshot =
        Snapshot { parameters: &parameters, optimizer: None, generators: &[], ema: None, config: json!(1) };
    checkpoint::save(folder.path(), &snapshot).unwrap();
    for _ in 0..50 {
        Checkpoint::open(folder.path()).unwrap().load(&parameters).unwrap();
    }
}

#[test]
fn what_leaves_no_room_for_a_second_copy_is_checked_first_and_loaded() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let n = 300_000;
    let gpu = Simulator::new(Profile::Discrete).memory(3_000_000).device();
    let builder = ParameterBuilder::new(&gpu, DType::F32);
    builder.parameter("large", n, Init::Constant(0.0)).unwrap();
    let parameters = builder.build(&Generator::new(&gpu, 1).unwrap()).unwrap();
    let mut values: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let write = |values: &[f32]| {
        let large = Tensor::from_slice(values, n, &device()).unwrap();
        Weights::write(&path, [("large", &large)]).unwrap();
    };
    write(&values);
    parameters.load_safetensors(&path, str::to_owned, STRICT).unwrap();
    assert_eq!(parameters.get("large").unwrap().to_vec::<f32>().unwrap(), values);
    // A bad value in the file changes nothing.
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, [&bytes[..bytes.len() - 4], &f32::NAN.to_le_bytes()].concat()).unwrap();
    assert!(parameters.load_safetensors(&path, str::to_owned, STRICT).is_err());
    values[0] = 0.0;
    assert_eq!(parameters.get("large").unwrap().to_vec::<f32>().unwrap(), values);
}
