//! Kernels that break the rules on purpose. Each runs in its own process, because a guard is chosen when the device
//! is opened, and a lost device stays lost.

use std::io::Write;
use std::process::Command;

use super::{CudaArgs, Grid, KernelSpec, Pointer, Source, params};
use crate::device::{Device, HostArgs};
use crate::error::{Error, Result};
use crate::ops::{self, Op, Specs, apply};
use crate::{DType, Step, Tensor};

static SOURCE: Source = Source {
    name: "planted",
    parts: &["
KERNEL(beyond, PlantedArgs, p) { p.y[p.n] = 1.0f; }
KERNEL(operand, PlantedArgs, p) { p.x[p.n - 1] = 7.0f; p.y[0] = 1.0f; }
KERNEL(beside, PlantedArgs, p) { p.y[2 * p.n - 1] = 1.0f; }
KERNEL(nowhere, PlantedArgs, p) { *(float*)16 = 1.0f; }
"],
};

params! {
    struct PlantedArgs {
        x: Pointer = "float*",
        y: Pointer = "float*",
        n: i64,
    }
}

/// Runs one of the kernels above over an operand and a result of its shape.
#[derive(Clone, Debug)]
pub(super) struct Planted(pub(super) &'static str);

impl Op for Planted {
    const NAME: &'static str = "planted";

    fn infer(&self, x: &[&Tensor]) -> Result<Specs> {
        Ok(ops::Spec::like(x[0]).one())
    }

    fn host(&self, _: &mut HostArgs<'_>) -> Result<()> {
        Ok(())
    }

    fn cuda(&self, args: &mut CudaArgs<'_>) -> Result<()> {
        let told = PlantedArgs { x: args.read(0), y: args.write(0), n: args.write_shape(0).numel() as i64 };
        args.kernel(KernelSpec::new(&SOURCE, self.0), Grid::line(1, 1), &told)
    }
}

/// Runs `body` in its own process with a variable set, if there is a GPU and no sanitizer that would report what is
/// broken on purpose.
fn alone(test: &str, variable: &str, body: impl FnOnce(&Device)) {
    if std::env::var("REFRAIN_SANITIZER").is_ok_and(|v| v == "1") {
        // Not with a macro: the test harness hides its output if a test passes.
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED {test}: its kernels break memory on purpose, and REFRAIN_SANITIZER=1"
        );
        return;
    }
    let Ok(device) = Device::cuda(0) else { return };
    if std::env::var(variable).is_ok_and(|v| v == "1") {
        return body(&device);
    }
    let program = std::env::current_exe().unwrap();
    let name = format!("device::cuda::tests::{test}");
    let run =
        Command::new(program).args(["--exact", &name, "--nocapture"]).env(variable, "1").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

#[track_caller]
fn assert_found(result: Result<Tensor>, what: &str) {
    match result {
        Err(Error::Internal { op: "planted", message }) => assert!(message.contains(what), "{message}"),
        other => panic!("not found: {other:?}"),
    }
}

#[test]
fn the_guard_finds_a_write_beyond_a_buffer() {
    alone("the_guard_finds_a_write_beyond_a_buffer", "REFRAIN_GUARD", |device| {
        let x = Tensor::ones([1000], DType::F32, device).unwrap();
        assert_found(apply(Planted("beyond"), &[&x]), "behind a buffer of 4000 bytes");
        assert_eq!(x.exp().unwrap().log().unwrap().sum(()).unwrap().to_scalar::<f32>().unwrap(), 1000.0);
    });
}

#[test]
fn the_guard_finds_a_write_that_was_not_declared() {
    alone("the_guard_finds_a_write_that_was_not_declared", "REFRAIN_GUARD", |device| {
        let x = Tensor::ones([1000], DType::F32, device).unwrap();
        assert_found(apply(Planted("operand"), &[&x]), "not declared as written");
        // Next to a destination that is a part of a larger tensor.
        let both = Tensor::zeros([2, 1000], DType::F32, device).unwrap();
        let into = ops::apply_into(Planted("beside"), &[&x], &both.select(0, 0).unwrap());
        assert_found(into.map(|()| x.clone()), "beside the declared range");
    });
}

#[test]
fn the_guard_knows_what_the_runs_of_a_profile_write() {
    alone("the_guard_knows_what_the_runs_of_a_profile_write", "REFRAIN_GUARD", |device| {
        let x = Tensor::ones([1], DType::F32, device).unwrap();
        let mut step = Step::new(device, |_| {
            x.mul_scalar_assign(2.0)?;
            Ok(vec![x.exp()?])
        });
        // Before and after a call; the runs change `x` and the memory of the program.
        for _ in 0..2 {
            step.profile(&[], 3).unwrap();
            step.call(&[]).unwrap();
        }
        assert_eq!(x.neg().unwrap().to_vec::<f32>().unwrap(), [-256.0]);
    });
}

#[test]
fn a_lost_device_tells_every_later_call_what_failed_first() {
    alone("a_lost_device_tells_every_later_call_what_failed_first", "REFRAIN_SYNC", |device| {
        let x = Tensor::ones([4], DType::F32, device).unwrap();
        for result in [apply(Planted("nowhere"), &[&x]), x.exp(), Tensor::zeros([2], DType::F32, device)] {
            match result {
                Err(Error::DeviceLost { cause, .. }) => assert!(cause.contains("planted"), "{cause}"),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(x.to_vec::<f32>(), Err(Error::DeviceLost { op: "to_vec", .. })));
        drop(x);
        assert!(Tensor::ones([4], DType::F32, &Device::cpu()).unwrap().exp().is_ok());
    });
}
