//! Checkpoints: a resumed run continues exactly, and a broken checkpoint is never loaded in part.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use common::device;
use refrain::optim::{AdamWOptions, Schedule, SgdOptions};
use refrain::{Activation, DType, Generator, Step, Tensor};
use refrain_nn::checkpoint::{self, CONFIG, TENSORS, write_atomic};
use refrain_nn::{
    AdamW, Checkpoint, Dropout, Ema, Error, Group, Init, Linear, Mode, ModelSize, Optimizer,
    ParameterBuilder, Parameters, Sgd, Snapshot,
};
use safetensors::tensor::TensorView;
use serde_json::json;
use tempfile::tempdir;

/// A small model with all state of a run: dropout, a schedule, clipping, groups, a buffer, an average.
struct Run {
    parameters: Parameters,
    hidden: Linear,
    head: Linear,
    optimizer: Box<dyn Optimizer>,
    generator: Generator,
    ema: Ema,
}

#[derive(Clone, Copy)]
struct Shape {
    hidden: usize,
    dtype: DType,
    sgd: bool,
    lr: f64,
}

const SHAPE: Shape = Shape { hidden: 16, dtype: DType::F32, sgd: false, lr: 0.01 };

impl Run {
    fn new(seed: u64, shape: Shape) -> Run {
        let generator = Generator::new(&device(), seed).unwrap();
        let builder = ParameterBuilder::new(&device(), shape.dtype);
        let hidden = Linear::new(&builder.scope("hidden"), 5, shape.hidden).unwrap();
        let head = Linear::new(&builder.scope("head"), shape.hidden, 1).unwrap();
        builder.buffer("scale", 1, Init::Normal { mean: 1.0, std: 0.1 }).unwrap();
        let parameters = builder.build(&generator).unwrap();
        let schedule = Schedule::WarmupCosine {
            lr: shape.lr,
            warmup_steps: 2,
            total_steps: 9,
            start_factor: 0.1,
            eta_min: 1e-5,
        };
        let optimizer: Box<dyn Optimizer> = if shape.sgd {
            let options = SgdOptions { momentum: 0.9, weight_decay: 0.01 };
            Box::new(Sgd::new(&parameters, options, schedule).unwrap().clip_grad_norm(0.5).unwrap())
        } else {
            let adamw = AdamW::new(&parameters, AdamWOptions::default(), schedule).unwrap();
            Box::new(adamw.clip_grad_norm(0.5).unwrap())
        };
        let ema = Ema::new(&parameters, 0.1 + 0.2).unwrap();
        Run { parameters, hidden, head, optimizer, generator, ema }
    }

    /// A step whose batch and mask come from the run's generator; returns the loss in f64.
    fn step(&self) -> refrain_nn::Result<Tensor> {
        let x = self.generator.normal([32, 5], self.parameters.values().dtype())?;
        let y = x.sum_keepdim(1)?.tanh()?;
        let h = self.hidden.forward_with(&x, Activation::Gelu, None)?;
        let h = Dropout::new(0.3)?.forward(&h, Mode::Train(&self.generator))?;
        let error = self.head.forward(&h)?.mul(self.parameters.get("scale")?)?.sub(&y)?;
        let loss = error.square()?.mean(())?;
        loss.backward()?;
        self.optimizer.step()?;
        self.ema.update(&self.parameters)?;
        Ok(loss.to_dtype(DType::F64)?)
    }

    /// Loss bits of some steps.
    fn train(&self, steps: usize) -> Vec<u64> {
        (0..steps).map(|_| self.step().unwrap().to_scalar::<f64>().unwrap().to_bits()).collect()
    }

    /// The step to be recorded.
    fn recorded(&self) -> Step<'_> {
        Step::new(&device(), |_| Ok(vec![self.step()?]))
    }

    fn save(&self, folder: &Path) {
        let snapshot = Snapshot {
            parameters: &self.parameters,
            optimizer: Some(self.optimizer.as_ref()),
            generators: &[("training", &self.generator)],
            ema: Some(&self.ema),
            config: json!({ "hidden": 16, "rate": 0.1 + 0.2 }),
        };
        checkpoint::save(folder, &snapshot).unwrap();
    }

    /// The model, without what training needs.
    fn model_alone(&self) -> Snapshot<'_> {
        Snapshot {
            parameters: &self.parameters,
            optimizer: None,
            generators: &[],
            ema: None,
            config: json!(null),
        }
    }

    fn resume(&self, folder: &Path) -> refrain_nn::Result<()> {
        let generators = [("training", &self.generator)];
        Checkpoint::open(folder)?.resume(
            &self.parameters,
            self.optimizer.as_ref(),
            &generators,
            Some(&self.ema),
        )
    }

    fn bits(&self) -> Vec<u64> {
        let bits = |t: &Tensor| -> Vec<u64> {
            let v: Vec<f64> = t.to_dtype(DType::F64).unwrap().to_vec().unwrap();
            v.into_iter().map(f64::to_bits).collect()
        };
        let mut all = bits(self.parameters.values());
        self.parameters.buffers().for_each(|(_, t)| all.extend(bits(t)));
        self.optimizer.buffers().into_iter().for_each(|(_, t)| all.extend(bits(t)));
        all.extend(bits(self.ema.average()));
        all.extend(self.optimizer.step_state().step().to_vec::<i64>().unwrap().iter().map(|&s| s as u64));
        let (seed, offset) = self.generator.state().unwrap();
        all.extend([seed, offset]);
        all
    }
}

#[test]
fn a_resumed_run_continues_bit_for_bit() {
    for (dtype, sgd) in [(DType::F32, false), (DType::F64, false), (DType::F32, true)] {
        let shape = Shape { dtype, sgd, ..SHAPE };
        let whole = Run::new(7, shape);
        let expected = whole.train(8);

        let folder = tempdir().unwrap();
        let first = Run::new(7, shape);
        let mut losses = first.train(3);
        first.save(folder.path());
        drop(first);
        // Another seed: everything must come from the checkpoint.
        let second = Run::new(8, shape);
        second.train(1);
        second.resume(folder.path()).unwrap();
        losses.extend(second.train(5));
        assert_eq!(losses, expected);
        assert!(second.bits() == whole.bits());
    }
}

#[test]
fn the_number_of_skipped_steps_is_kept() {
    let run = |skips: bool| {
        let builder = ParameterBuilder::new(&device(), DType::F32);
        builder.parameter("weight", 3, Init::Constant(0.5)).unwrap();
        let parameters = builder.build(&Generator::new(&device(), 1).unwrap()).unwrap();
        let optimizer =
            AdamW::new(&parameters, AdamWOptions::default(), Schedule::Constant { lr: 0.1 }).unwrap();
        (parameters, if skips { optimizer.skip_non_finite().unwrap() } else { optimizer })
    };
    let folder = tempdir().unwrap();
    let (parameters, optimizer) = run(true);
    for gradient in [1.0, f64::NAN, f64::INFINITY, 2.0, f64::NAN] {
        parameters.gradients().fill(gradient).unwrap();
        optimizer.step().unwrap();
    }
    let snapshot = Snapshot {
        parameters: &parameters,
        optimizer: Some(&optimizer),
        generators: &[],
        ema: None,
        config: json!({}),
    };
    checkpoint::save(folder.path(), &snapshot).unwrap();

    let saved = Checkpoint::open(folder.path()).unwrap();
    assert_eq!((saved.steps(), saved.skipped_steps()), (2, 3));
    let (parameters, optimizer) = run(true);
    saved.resume(&parameters, &optimizer, &[], None).unwrap();
    let skipped = || optimizer.step_state().skipped().unwrap().to_scalar::<i64>().unwrap();
    assert_eq!(skipped(), 3);
    parameters.gradients().fill(f64::NAN).unwrap();
    optimizer.step().unwrap();
    assert_eq!(skipped(), 4);
    // An optimiser that does not skip steps goes on, too.
    let (parameters, optimizer) = run(false);
    saved.resume(&parameters, &optimizer, &[], None).unwrap();
    assert!(optimizer.step_state().skipped().is_none());
}

#[test]
fn a_checkpoint_loaded_between_two_replays_is_what_the_next_one_goes_on_from() {
    for (dtype, sgd) in [(DType::F32, false), (DType::F64, false), (DType::F32, true)] {
        let shape = Shape { dtype, sgd, ..SHAPE };
        let whole = Run::new(7, shape);
        let expected = whole.train(8);
        let replay = |step: &mut Step<'_>| step.call(&[]).unwrap().to_scalar::<f64>(0).unwrap().to_bits();

        let folder = tempdir().unwrap();
        let first = Run::new(7, shape);
        let mut step = first.recorded();
        let mut losses: Vec<u64> = (0..3).map(|_| replay(&mut step)).collect();
        step.check().unwrap();
        first.save(folder.path());
        let second = Run::new(8, shape);
        let mut step = second.recorded();
        replay(&mut step);
        second.resume(folder.path()).unwrap();
        losses.extend((0..5).map(|_| replay(&mut step)));
        step.finish().unwrap();
        assert_eq!(losses, expected);
        assert!(second.bits() == whole.bits());
    }
}

#[test]
fn the_model_alone_loads_and_the_configuration_comes_back_exactly() {
    let folder = tempdir().unwrap();
    let run = Run::new(1, SHAPE);
    run.train(2);
    run.save(folder.path());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let config: serde_json::Value = checkpoint.config().unwrap();
    assert_eq!(config, json!({ "hidden": 16, "rate": 0.1 + 0.2 }));
    assert_eq!(checkpoint.steps(), 2);
    assert!(checkpoint.config::<Vec<u8>>().unwrap_err().to_string().contains("configuration"));
    let beside: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.path().join(CONFIG)).unwrap()).unwrap();
    assert_eq!(beside["config"], config);
    assert_eq!(beside["optimizer"]["kind"], "adamw");

    let other = Run::new(2, SHAPE);
    let moments = other.bits()[other.parameters.values().numel() + 1..].to_vec();
    checkpoint.load(&other.parameters).unwrap();
    let loaded = other.bits();
    let model = other.parameters.values().numel() + 1;
    assert_eq!(loaded[..model], run.bits()[..model]);
    assert_eq!(loaded[model..], moments, "the optimiser is left alone");
}

#[test]
fn what_belongs_to_another_run_is_refused_and_changes_nothing() {
    let folder = tempdir().unwrap();
    let run = Run::new(1, SHAPE);
    run.train(2);
    run.save(folder.path());
    let refused = |shape: Shape, expected: &[&str]| {
        let other = Run::new(3, shape);
        let before = other.bits();
        let message = other.resume(folder.path()).unwrap_err().to_string();
        for part in expected {
            assert!(message.contains(part), "`{part}` is not in: {message}");
        }
        assert!(other.bits() == before);
    };
    let build = "build the model with the configuration";
    refused(Shape { hidden: 15, ..SHAPE }, &["hidden.weight", "[16, 5]", "[15, 5]", build]);
    refused(Shape { dtype: DType::F64, ..SHAPE }, &["F32", "f64", build]);
    refused(Shape { sgd: true, ..SHAPE }, &["the optimiser was {", "adamw", "sgd"]);
    refused(
        Shape { lr: 0.02, ..SHAPE },
        &["schedule.lr was 0.01, and is 0.02 now", "resume_rescheduled", "start a new run"],
    );

    let mut regrouped = Run::new(3, SHAPE);
    regrouped.parameters.set_group(|_, _| true, |group| *group = Group::default()).unwrap();
    let before = regrouped.bits();
    let message = regrouped.resume(folder.path()).unwrap_err().to_string();
    let differ =
        "`hidden.bias` has decay factor 0, rate factor 1, trained, but the model's has decay factor 1";
    assert!(message.contains(differ) && message.contains("same groups"), "{message}");
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let unnamed = Run::new(3, SHAPE);
    let e = checkpoint.resume(&unnamed.parameters, unnamed.optimizer.as_ref(), &[], None).unwrap_err();
    assert!(e.to_string().contains("training"), "{e}");
    assert!(regrouped.bits() == before && unnamed.bits() == before);

    let builder = ParameterBuilder::new(&device(), DType::F32);
    Linear::new(&builder.scope("body"), 5, 16).unwrap();
    let parameters = builder.build(&unnamed.generator).unwrap();
    let message = checkpoint.load(&parameters).unwrap_err().to_string();
    for part in ["lacks `body.bias`, `body.weight`", "lacks `head.bias`", "and 1 more"] {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn an_average_of_a_model_in_bf16_is_resumed_in_f32() {
    let folder = tempdir().unwrap();
    let shape = Shape { dtype: DType::BF16, ..SHAPE };
    let (run, other) = (Run::new(1, shape), Run::new(2, shape));
    run.train(3);
    run.save(folder.path());
    let average = |run: &Run| run.ema.average().to_vec::<f32>().unwrap();
    assert_ne!(average(&other), average(&run));
    other.resume(folder.path()).unwrap();
    assert_eq!(average(&other), average(&run));
}

#[test]
fn an_average_that_only_the_checkpoint_or_only_the_program_has_is_refused_and_changes_nothing() {
    let folder = tempdir().unwrap();
    let run = Run::new(1, SHAPE);
    run.train(2);
    let other = Run::new(2, SHAPE);
    let before = other.bits();
    let generators = [("training", &other.generator)];
    let refused = |ema: Option<&Ema>, expected: &str| {
        let saved = Checkpoint::open(folder.path()).unwrap();
        let error = saved.resume(&other.parameters, other.optimizer.as_ref(), &generators, ema).unwrap_err();
        assert!(error.to_string().contains(expected), "`{expected}` is not in: {error}");
        assert!(other.bits() == before);
    };
    run.save(folder.path());
    refused(None, "has an average of the weights with decay 0.30000000000000004, but none was given");
    refused(
        Some(&Ema::new(&other.parameters, 0.5).unwrap()),
        "has decay 0.30000000000000004, but the one that was given has 0.5",
    );
    refused(Some(&run.ema), "the parameters of another model");

    let mut snapshot = Snapshot {
        parameters: &run.parameters,
        optimizer: Some(run.optimizer.as_ref()),
        generators: &[("training", &run.generator)],
        ema: None,
        config: json!({}),
    };
    checkpoint::save(folder.path(), &snapshot).unwrap();
    refused(Some(&other.ema), "has no average of the weights, but one was given");
    snapshot.ema = Some(&other.ema);
    let error = checkpoint::save(folder.path(), &snapshot).unwrap_err().to_string();
    assert!(error.contains("the parameters of another model"), "{error}");
    // A model alone is loaded without the average.
    run.save(folder.path());
    Checkpoint::open(folder.path()).unwrap().load(&other.parameters).unwrap();
}

#[test]
fn a_model_saved_without_optimiser_does_not_resume() {
    let folder = tempdir().unwrap();
    let run = Run::new(1, SHAPE);
    checkpoint::save(folder.path().join("a/b"), &run.model_alone()).unwrap();
    let message = run.resume(&folder.path().join("a/b")).unwrap_err().to_string();
    assert!(message.contains("has no optimiser state"), "{message}");
    Checkpoint::open(folder.path().join("a/b")).unwrap().load(&run.parameters).unwrap();
}

#[test]
fn broken_files_are_refused() {
    let folder = tempdir().unwrap();
    let path = folder.path().join(TENSORS);
    let open = || Checkpoint::open(folder.path()).err().unwrap();
    assert!(matches!(open(), Error::Io { action: "read", .. }));
    let run = Run::new(1, SHAPE);
    run.train(1);
    run.save(folder.path());
    let whole = fs::read(&path).unwrap();
    for length in [0, 4, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        let e = open();
        assert!(matches!(&e, Error::Checkpoint { .. }) && e.to_string().contains("cut off"), "{length}: {e}");
    }
    fs::write(&path, b"unique_id,ds,y\nnot tensors at all\n").unwrap();
    assert!(open().to_string().contains("not a safetensors file"));
    let foreign: Vec<(&str, safetensors::tensor::TensorView<'_>)> = Vec::new();
    fs::write(&path, safetensors::serialize(foreign, None).unwrap()).unwrap();
    assert!(open().to_string().contains("no configuration of refrain"));
    // The version is a digit in the metadata, so the file stays valid.
    let begin = br#"{\"version\":3"#;
    let at = whole.windows(begin.len()).position(|bytes| bytes == begin).unwrap() + begin.len() - 1;
    for (version, expected) in
        [(b'4', "version 4"), (b'0', "version 0"), (b'1', "checksum differs"), (b'2', "checksum differs")]
    {
        let mut other = whole.clone();
        other[at] = version;
        fs::write(&path, &other).unwrap();
        assert!(open().to_string().contains(expected), "{}", open());
    }
    fs::write(&path, &whole).unwrap();
    run.resume(folder.path()).unwrap();
}

/// The checkpoint of a briefly trained run, and its file.
fn saved(folder: &Path) -> (Run, Vec<u8>) {
    let run = Run::new(1, SHAPE);
    run.train(2);
    run.save(folder);
    (run, fs::read(folder.join(TENSORS)).unwrap())
}

/// A file in the format without checksums, after a change of state and tensors.
fn before_checksums(
    file: &[u8],
    change: impl Fn(&mut serde_json::Value, &mut BTreeMap<String, Vec<u8>>),
) -> Vec<u8> {
    let (_, metadata) = safetensors::SafeTensors::read_metadata(file).unwrap();
    let mut state: serde_json::Value =
        serde_json::from_str(&metadata.metadata().as_ref().unwrap()["refrain"]).unwrap();
    let views = safetensors::SafeTensors::deserialize(file).unwrap();
    let mut tensors: BTreeMap<String, Vec<u8>> =
        views.tensors().into_iter().map(|(name, view)| (name, view.data().to_vec())).collect();
    state["version"] = json!(1);
    change(&mut state, &mut tensors);
    let written = tensors.iter().map(|(name, bytes)| {
        let view = views.tensor(name).unwrap();
        (name, TensorView::new(view.dtype(), view.shape().to_vec(), bytes).unwrap())
    });
    let metadata = HashMap::from([("refrain".to_string(), state.to_string())]);
    safetensors::serialize(written, Some(metadata)).unwrap()
}

#[test]
fn a_changed_byte_is_refused_or_changes_nothing() {
    let folder = tempdir().unwrap();
    let (run, whole) = saved(folder.path());
    let expected = run.bits();
    let other = Run::new(2, SHAPE);
    assert!(Checkpoint::open(folder.path()).unwrap().unverified().is_none());
    let (mut refused, mut taken) = (0, 0);
    for at in (0..whole.len()).step_by(2) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        fs::write(folder.path().join(TENSORS), &changed).unwrap();
        match other.resume(folder.path()) {
            Err(_) => refused += 1,
            Ok(()) => {
                assert!(other.bits() == expected, "byte {at} of {}", whole.len());
                taken += 1;
            }
        }
    }
    // For example spaces that fill the header, and numbers written with one more digit.
    assert!(taken * 20 < refused, "{taken} of {}", taken + refused);
}

#[test]
fn a_file_that_is_changed_in_place_after_it_was_opened_changes_nothing() {
    let folder = tempdir().unwrap();
    let (run, whole) = saved(folder.path());
    let opened = Checkpoint::open(folder.path()).unwrap();
    // The system notes times of changes in steps of some milliseconds.
    std::thread::sleep(std::time::Duration::from_millis(30));
    fs::write(folder.path().join(TENSORS), &whole).unwrap();
    let before = run.bits();
    let error = opened.load(&run.parameters).unwrap_err().to_string();
    assert!(error.contains("changed while it was read"), "{error}");
    assert!(run.bits() == before);
    Checkpoint::open(folder.path()).unwrap().load(&run.parameters).unwrap();
}

#[test]
fn a_checkpoint_of_before_and_weights_from_elsewhere_are_taken_and_say_that_they_have_no_checksum() {
    let folder = tempdir().unwrap();
    let path = folder.path().join(TENSORS);
    let (run, whole) = saved(folder.path());
    fs::write(&path, before_checksums(&whole, |_, _| {})).unwrap();
    let other = Run::new(2, SHAPE);
    other.resume(folder.path()).unwrap();
    assert!(other.bits() == run.bits());
    let why = Checkpoint::open(folder.path()).unwrap().unverified().unwrap();
    assert!(why.contains(TENSORS) && why.contains("before checkpoints had checksums"), "{why}");

    let views = safetensors::SafeTensors::deserialize(&whole).unwrap();
    let weights = views.tensors().into_iter().filter(|(name, _)| !name.starts_with("optimizer."));
    let elsewhere = folder.path().join("weights.safetensors");
    fs::write(&elsewhere, safetensors::serialize(weights, None).unwrap()).unwrap();
    let checkpoint = Checkpoint::open_file(&elsewhere).unwrap();
    let why = checkpoint.unverified().unwrap();
    assert!(why.contains("not written by refrain"), "{why}");
    let other = Run::new(2, SHAPE);
    checkpoint.load(&other.parameters).unwrap();
    let model = other.parameters.values().numel() + 1;
    assert!(other.bits()[..model] == run.bits()[..model]);
    let message = checkpoint.config::<serde_json::Value>().unwrap_err().to_string();
    assert!(message.contains("no configuration of refrain"), "{message}");
    let resumed = checkpoint.resume(&other.parameters, other.optimizer.as_ref(), &[], None);
    assert!(resumed.unwrap_err().to_string().contains("no configuration of refrain"));
}

#[test]
fn numbers_that_are_not_finite_are_neither_saved_nor_loaded() {
    let folder = tempdir().unwrap();
    let (run, whole) = saved(folder.path());
    for value in [f32::NAN, f32::INFINITY] {
        for name in ["head.weight", "scale", "optimizer.exp_avg.hidden.weight", "optimizer.ema.head.bias"] {
            let changed = before_checksums(&whole, |_, tensors| {
                let bytes = tensors.get_mut(name).unwrap();
                let end = bytes.len();
                bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
            });
            fs::write(folder.path().join(TENSORS), changed).unwrap();
            let other = Run::new(2, SHAPE);
            let before = other.bits();
            let message = other.resume(folder.path()).unwrap_err().to_string();
            assert!(message.contains(&format!("`{name}` is {value}")), "{message}");
            assert!(other.bits() == before);
        }
    }
    fs::write(folder.path().join(TENSORS), &whole).unwrap();
    refrain::no_grad(|| run.parameters.get("hidden.weight").unwrap().fill(f64::NAN)).unwrap();
    let message = checkpoint::save(folder.path(), &run.model_alone()).unwrap_err().to_string();
    assert!(message.contains("`hidden.weight` is NaN"), "{message}");
    assert_eq!(fs::read(folder.path().join(TENSORS)).unwrap(), whole);
}

#[test]
fn what_contradicts_the_tensors_is_refused() {
    let folder = tempdir().unwrap();
    let (run, whole) = saved(folder.path());
    let changed = before_checksums(&whole, |state, _| state["steps"] = json!(3));
    fs::write(folder.path().join(TENSORS), changed).unwrap();
    assert!(run.resume(folder.path()).unwrap_err().to_string().contains("says 3 steps"));

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let size = |layers: usize| {
        let of = |layers| {
            let builder = ParameterBuilder::new(&device(), DType::F32);
            builder.buffer("scale", 1, Init::Constant(1.0)).unwrap();
            Linear::new(&builder.scope("head"), 16, 1).unwrap();
            (0..layers).for_each(|i| drop(Linear::new(&builder.scope(i), 5, 16).unwrap()));
            builder.size()
        };
        ModelSize::with_layers(layers, of(1), of(2))
    };
    checkpoint.check_size(size(1)).unwrap();
    // Nothing of that size is allocated.
    let message = checkpoint.check_size(size(1 << 40)).unwrap_err().to_string();
    assert!(message.contains("105553116266514 numbers") && message.contains("has 114 in 5"), "{message}");
}

#[test]
fn a_model_larger_than_any_memory_is_an_error() {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let side = 1 << 24;
    builder.parameter("weight", [side, side, side, side], Init::Constant(0.0)).unwrap();
    assert_eq!(builder.size().parameters, 1 << 96);
    let message = builder.build(&Generator::new(&device(), 1).unwrap()).err().unwrap().to_string();
    assert!(message.contains("do not fit into any memory"), "{message}");
}

#[test]
fn a_failed_write_leaves_the_old_checkpoint_and_no_litter() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("kept.json");
    write_atomic(&path, b"one").unwrap();
    write_atomic(&path, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");

    // A folder has the file's name, so the rename fails after everything was written.
    let blocked = folder.path().join("blocked");
    fs::create_dir_all(blocked.join("inside")).unwrap();
    let e = write_atomic(&blocked, b"content").unwrap_err();
    assert!(matches!(e, Error::Io { action: "write", .. }), "{e}");
    assert!(e.to_string().contains("blocked"), "{e}");
    let missing = write_atomic(&folder.path().join("no/such/file"), b"content").unwrap_err();
    assert!(missing.to_string().contains("no/such"), "{missing}");

    let mut names: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["blocked", "kept.json"]);
    let run = Run::new(1, SHAPE);
    let e = checkpoint::save(&path, &run.model_alone()).unwrap_err();
    assert!(matches!(e, Error::Io { action: "create", .. }), "{e}");
    assert_eq!(fs::read(&path).unwrap(), b"two");
}

#[test]
fn a_reader_during_many_writes_always_finds_a_whole_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("file");
    let content = |i: usize| vec![i as u8; 200_000 + i];
    write_atomic(&path, &content(0)).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (1..30).for_each(|i| write_atomic(&path, &content(i)).unwrap()));
        let mut reads = 0;
        while !writer.is_finished() || reads == 0 {
            let found = fs::read(&path).unwrap();
            assert_eq!(found, content(found[0] as usize));
            reads += 1;
        }
    });
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link_and_what_is_no_file_is_never_replaced() {
    use std::os::unix::fs::FileTypeExt;
    let folder = tempdir().unwrap();
    let [file, link, socket] = ["file", "link", "socket"].map(|name| folder.path().join(name));
    fs::write(&file, b"old").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    write_atomic(&link, b"new").unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&file).unwrap(), b"new");

    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let e = write_atomic(&socket, b"content").unwrap_err();
    assert!(e.to_string().contains("socket"), "{e}");
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
}

#[cfg(unix)]
#[test]
fn others_may_read_a_checkpoint_as_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    fs::write(folder.path().join("plain"), b"").unwrap();
    write_atomic(&folder.path().join("atomic"), b"").unwrap();
    assert_eq!(mode(&folder.path().join("atomic")), mode(&folder.path().join("plain")));
}
