//! Checkpoints: a resumed run is the run, and nothing broken is ever half taken.

mod common;

use std::fs;
use std::path::Path;

use common::device;
use refrain::optim::{AdamWOptions, Schedule, SgdOptions};
use refrain::{Activation, DType, Generator, Step, Tensor};
use refrain_nn::checkpoint::{self, CONFIG, TENSORS, write_atomic};
use refrain_nn::{
    AdamW, Checkpoint, Dropout, Error, Group, Init, Linear, Mode, Optimizer, ParameterBuilder, Parameters,
    Sgd, Snapshot,
};
use serde_json::json;
use tempfile::tempdir;

/// A small model with everything that a run draws on: dropout, a schedule, clipping, groups, a buffer.
struct Run {
    parameters: Parameters,
    hidden: Linear,
    head: Linear,
    optimizer: Box<dyn Optimizer>,
    generator: Generator,
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
        let mut parameters = builder.build(&generator).unwrap();
        let undecayed = Group { decay_factor: 0.0, ..Group::default() };
        parameters.set_group(|_, t| t.rank() < 2, undecayed).unwrap();
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
        Run { parameters, hidden, head, optimizer, generator }
    }

    /// A step whose batch and mask are drawn from the run's generator; the loss, f64.
    fn step(&self) -> refrain_nn::Result<Tensor> {
        let x = self.generator.normal([32, 5], self.parameters.values().dtype())?;
        let y = x.sum_keepdim(1)?.tanh()?;
        let h = self.hidden.forward_with(&x, Activation::Gelu, None)?;
        let h = Dropout::new(0.3)?.forward(&h, Mode::Train(&self.generator))?;
        let error = self.head.forward(&h)?.mul(self.parameters.get("scale")?)?.sub(&y)?;
        let loss = error.square()?.mean(())?;
        loss.backward()?;
        self.optimizer.step()?;
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
            config: json!({ "hidden": 16, "rate": 0.1 + 0.2 }),
        };
        checkpoint::save(folder, &snapshot).unwrap();
    }

    fn resume(&self, folder: &Path) -> refrain_nn::Result<()> {
        let generators = [("training", &self.generator)];
        Checkpoint::open(folder)?.resume(&self.parameters, self.optimizer.as_ref(), &generators)
    }

    fn bits(&self) -> Vec<u64> {
        let bits = |t: &Tensor| -> Vec<u64> {
            let v: Vec<f64> = t.to_dtype(DType::F64).unwrap().to_vec().unwrap();
            v.into_iter().map(f64::to_bits).collect()
        };
        let mut all = bits(self.parameters.values());
        self.parameters.buffers().for_each(|(_, t)| all.extend(bits(t)));
        self.optimizer.buffers().into_iter().for_each(|(_, t)| all.extend(bits(t)));
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
    refused(Shape { sgd: true, ..SHAPE }, &["adamw", "sgd"]);
    refused(Shape { lr: 0.02, ..SHAPE }, &["0.01", "0.02", "start a new run"]);

    let mut regrouped = Run::new(3, SHAPE);
    regrouped.parameters.set_group(|_, _| true, Group::default()).unwrap();
    let before = regrouped.bits();
    assert!(regrouped.resume(folder.path()).unwrap_err().to_string().contains("same groups"));
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let unnamed = Run::new(3, SHAPE);
    let e = checkpoint.resume(&unnamed.parameters, unnamed.optimizer.as_ref(), &[]).unwrap_err();
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
fn a_model_saved_without_optimiser_does_not_resume() {
    let folder = tempdir().unwrap();
    let run = Run::new(1, SHAPE);
    let snapshot =
        Snapshot { parameters: &run.parameters, optimizer: None, generators: &[], config: json!(null) };
    checkpoint::save(folder.path().join("a/b"), &snapshot).unwrap();
    let message = run.resume(&folder.path().join("a/b")).unwrap_err().to_string();
    assert!(message.contains("holds no optimiser"), "{message}");
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
    assert!(open().to_string().contains("another kind"));
    let foreign: Vec<(&str, safetensors::tensor::TensorView<'_>)> = Vec::new();
    fs::write(&path, safetensors::serialize(foreign, None).unwrap()).unwrap();
    assert!(open().to_string().contains("written by refrain"));
    // The version is a digit in the metadata, so the file stays a whole one.
    let text = String::from_utf8_lossy(&whole).into_owned();
    let at = text.find(r#"{\"version\":1"#).unwrap() + r#"{\"version\":"#.len();
    let mut later = whole.clone();
    later[at] = b'2';
    fs::write(&path, &later).unwrap();
    assert!(open().to_string().contains("version 2"), "{}", open());
    fs::write(&path, &whole).unwrap();
    run.resume(folder.path()).unwrap();
}

#[test]
fn a_failed_write_leaves_the_old_checkpoint_and_no_litter() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("kept.json");
    write_atomic(&path, b"one").unwrap();
    write_atomic(&path, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");

    // A folder stands where the file is to go: the rename fails after everything was written.
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
    let snapshot =
        Snapshot { parameters: &run.parameters, optimizer: None, generators: &[], config: json!(null) };
    let e = checkpoint::save(&path, &snapshot).unwrap_err();
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
