//! The steps of `refrain bench step`, recorded.

#[allow(dead_code, unused_imports)] // Each program uses a part of it.
#[path = "../../refrain-cli/src/bench/mod.rs"]
mod bench;

use bench::{CrossSizes, StepBench, StepSizes};
use refrain::Device;
use refrain_forecast::models::cross_asset::CrossAssetConfig;

#[test]
fn a_recorded_step_is_the_eager_step_in_little_more_memory_than_any_plan_needs() {
    let device = Device::cpu();
    let patchtst = |sizes: StepSizes| [0, 1].map(|_| StepBench::new(&sizes, &device, 5).unwrap());
    let cross =
        CrossSizes { model: CrossAssetConfig { d_model: 64, ffn: 128, ..Default::default() }, batch: 64 };
    for (name, [eager, bench]) in [
        ("seed", patchtst(StepSizes::seed())),
        ("small", patchtst(StepSizes::small())),
        ("large", patchtst(StepSizes::large())),
        ("cross", [0, 1].map(|_| StepBench::new(&cross, &device, 5).unwrap())),
    ] {
        let mut step = bench.recorded();
        let steps = if name == "large" { 1 } else { 3 };
        for i in 0..steps {
            let expected = eager.step(eager.batch(i)).unwrap().to_scalar::<f32>().unwrap();
            let loss = step.call(bench.batch(i)).unwrap().to_scalar::<f32>(0).unwrap();
            assert_eq!(loss.to_bits(), expected.to_bits(), "{name}, step {i}: {loss} and {expected}");
        }
        let program = step.program().unwrap();
        let (bytes, bound) = (program.block_bytes(), program.live_bytes());
        println!(
            "{name}: {} launches, {} dependencies, longest chain {}, {} temporaries in {bytes} bytes, at least {bound}",
            program.launch_count(),
            program.dependencies(),
            program.longest_chain(),
            program.temporaries(),
        );
        assert!(bytes * 10 <= bound * 11, "{name}: {bytes} bytes where {bound} are alive at most");
        step.finish().unwrap();
    }
}
