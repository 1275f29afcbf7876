//! Random programs: recorded against eager ones, on the CPU and both simulated GPUs, bit for bit.

use refrain::{Device, Profile, Simulator, Step, Tensor};

use crate::target::{Input, Target, mix};

/// The target: a program is a line of operations' names.
pub struct Programs;

/// The operations, each on the result of the one before.
type Operation = (&'static str, fn(&Tensor) -> refrain::Result<Tensor>);
const OPERATIONS: [Operation; 4] =
    [("tanh", Tensor::tanh), ("square", Tensor::square), ("neg", Tensor::neg), ("exp", Tensor::exp)];

/// Runs a program three times, eagerly or recorded.
fn run(program: &str, device: &Device, recorded: bool) -> refrain::Result<Vec<f32>> {
    let of = |x: &Tensor| {
        program.split_whitespace().try_fold(x.clone(), |x, name| {
            OPERATIONS.iter().find(|(n, _)| *n == name).map_or(Ok(x.clone()), |(_, f)| f(&x))
        })
    };
    let mut step = Step::new(device, |x: &[Tensor]| Ok(vec![of(&x[0])?.exp()?]));
    let mut values = Vec::new();
    for call in 0..3u8 {
        let x = Tensor::from_slice(&[0.5, -1.5, f32::from(call)], 3, device)?;
        match recorded {
            true => values.extend(step.call(&[x])?.to_vec::<f32>(0)?),
            false => values.extend(of(&x)?.exp()?.to_vec::<f32>()?),
        }
    }
    step.finish()?;
    Ok(values)
}

impl Target for Programs {
    fn name(&self) -> &'static str {
        "programs"
    }

    fn make(&self, number: u64) -> Input {
        let names = (0..1 + mix(number) % 8).map(|i| OPERATIONS[(mix(number ^ (i << 32)) % 4) as usize].0);
        Input { kind: "program".to_string(), bytes: names.collect::<Vec<_>>().join(" ").into_bytes() }
    }

    fn check(&self, input: &Input) -> Result<(), String> {
        let program = std::str::from_utf8(&input.bytes).map_err(|e| e.to_string())?;
        let values = |device: &Device, recorded| run(program, device, recorded).map_err(|e| e.to_string());
        let want = values(&Device::cpu(), false)?;
        let simulated = [Profile::Discrete, Profile::Unified].map(|p| Simulator::new(p).device());
        for device in [Device::cpu()].iter().chain(&simulated) {
            let is = values(device, true)?;
            if is.iter().map(|v| v.to_bits()).ne(want.iter().map(|v| v.to_bits())) {
                return Err(format!("recorded on {device}: {is:?} instead of {want:?}"));
            }
        }
        Ok(())
    }
}
