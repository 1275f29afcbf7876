//! The memory bandwidth that memory-bound operations reach on a device: `cargo run --release --example bandwidth --
//! cuda 256` for tensors of 256 MiB.
//!
//! The bytes are the minimum that an operation must read and write; the reference is a plain copy.

use std::time::Instant;

use refrain::{DType, Device, Generator, Result, Tensor};

const REPEATS: usize = 7;
const LAUNCHES: usize = 20;

/// The median time of one call, in seconds.
fn seconds(device: &Device, mut f: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..3 {
        f()?;
    }
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        device.synchronize()?;
        let begun = Instant::now();
        for _ in 0..LAUNCHES {
            f()?;
        }
        device.synchronize()?;
        times.push(begun.elapsed().as_secs_f64() / LAUNCHES as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[REPEATS / 2])
}

fn measure(device: &Device, dtype: DType, mebibytes: usize) -> Result<()> {
    let bytes = mebibytes << 20;
    let (rows, width) = (bytes / dtype.size() / 1024, 1024);
    let generator = Generator::new(device, 1)?;
    let x = generator.normal([rows, width], dtype)?;
    let y = generator.normal([rows, width], dtype)?;
    let out = Tensor::zeros([rows, width], dtype, device)?;
    let (row, column) = (Tensor::zeros([width], dtype, device)?, Tensor::zeros([rows], dtype, device)?);
    let one = Tensor::zeros((), dtype, device)?;
    let turned = Tensor::zeros([width, rows], dtype, device)?;
    let (weight, bias) = (Tensor::ones([width], dtype, device)?, Tensor::zeros([width], dtype, device)?);
    let copy = 2.0 * bytes as f64 / seconds(device, || out.copy_from(&x))? / 1e9;
    println!(
        "\n{dtype}, {mebibytes} MiB: copy {copy:.0} GB/s\n| operation | GB/s | of a copy |\n| --- | --- | --- |"
    );
    let tell = |name: &str, tensors: f64, time: f64| {
        let rate = tensors * bytes as f64 / time / 1e9;
        println!("| {name} | {rate:.0} | {:.0} % |", 100.0 * rate / copy);
    };
    tell("add", 3.0, seconds(device, || x.add_into(&y, &out))?);
    tell("add a row", 2.0, seconds(device, || x.add_into(&row, &out))?);
    tell("multiply by a scalar", 2.0, seconds(device, || x.mul_scalar_into(1.5, &out))?);
    tell("gelu_tanh", 2.0, seconds(device, || x.gelu_tanh_into(&out))?);
    tell("fill", 1.0, seconds(device, || out.fill(0.5))?);
    tell("transpose", 2.0, seconds(device, || turned.copy_from(&x.transpose(0, 1)?))?);
    tell("sum of all", 1.0, seconds(device, || x.sum_into((), &one))?);
    tell("sum of rows", 1.0, seconds(device, || x.sum_into(0, &row))?);
    tell("sum of columns", 1.0, seconds(device, || x.sum_into(1, &column))?);
    tell("softmax", 2.0, seconds(device, || x.softmax_into(1, &out))?);
    tell("layer_norm", 2.0, seconds(device, || x.layer_norm_into(&weight, &bias, 1e-5, &out))?);
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let device: Device = arguments.next().unwrap_or("cpu".to_string()).parse()?;
    let mebibytes = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(64);
    for dtype in [DType::F32, DType::BF16] {
        measure(&device, dtype, mebibytes)?;
    }
    Ok(())
}
