//! `refrain devices`.

use refrain::{CudaDevice, CudaReport, Device};
use serde::Serialize;

use crate::cli::Devices;
use crate::console::Console;
use crate::error::Result;

/// What `--json` prints.
#[derive(Serialize)]
struct Outcome {
    devices: Vec<Found>,
    best: String,
}

/// A device of this machine, or one that could be used after a fix.
#[derive(Clone, Serialize)]
struct Found {
    name: String,
    usable: bool,
    about: String,
    /// What to do to make it usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<Gpu>,
}

/// What is known of a GPU.
#[derive(Clone, Serialize)]
struct Gpu {
    name: String,
    compute_capability: String,
    memory_bytes: usize,
    multiprocessors: usize,
    driver: String,
    nvrtc: String,
    cublaslt: Option<String>,
    nccl: Option<String>,
    integrated: bool,
    unified_addressing: bool,
    pageable_memory_access: bool,
    capture: bool,
}

pub fn run(args: Devices) -> Result<()> {
    let console = Console::new(args.json);
    let devices = [vec![cpu()], nvidia(&CudaReport::new()), vec![simulated()]].concat();
    for device in &devices {
        let state = if device.usable { "ready" } else { "not used" };
        console.line(format!("{:<8}{state:<10}{}", device.name, device.about))?;
        if let Some(fix) = &device.fix {
            console.line(format!("{:<18}{fix}", ""))?;
        }
    }
    let best = Device::best().name();
    console.line(format!("\n--device auto uses {best}"))?;
    console.result(&Outcome { devices, best })
}

fn cpu() -> Found {
    let threads = rayon::current_num_threads();
    let cores = std::thread::available_parallelism().map_or(threads, usize::from);
    let instructions = match refrain::cpu_instructions() {
        none if none.is_empty() => "no vector instructions known".to_owned(),
        names => names.join(", "),
    };
    let fix = (threads < cores)
        .then(|| format!("the machine has {cores} cores: --threads {cores} uses all of them"));
    let about = format!("{} threads, {}, {instructions}", threads, std::env::consts::ARCH);
    Found { name: "cpu".to_owned(), usable: true, about, fix, gpu: None }
}

/// The simulated GPU, which `auto` never chooses.
fn simulated() -> Found {
    let about =
        "a simulated GPU on the CPU, to check whether steps can be recorded and replayed; also sim:unified";
    Found { name: "sim".to_owned(), usable: true, about: about.to_owned(), fix: None, gpu: None }
}

/// NVIDIA GPUs, with the software that the engine needs for them.
fn nvidia(report: &CudaReport) -> Vec<Found> {
    let missing = [report.driver.as_ref().err(), report.nvrtc.as_ref().err()];
    let missing: Vec<&String> = missing.into_iter().flatten().collect();
    if report.devices.is_empty() || !missing.is_empty() {
        let about = match report.devices.len() {
            0 => "no NVIDIA GPU can be used".to_owned(),
            n => format!("{n} NVIDIA GPU{} here, but software is missing", if n == 1 { "" } else { "s" }),
        };
        let fix = missing.first().map(|m| m.to_string());
        return vec![Found { name: "cuda".to_owned(), usable: false, about, fix, gpu: None }];
    }
    report.devices.iter().map(|device| gpu(device, report)).collect()
}

fn gpu(device: &CudaDevice, report: &CudaReport) -> Found {
    let opened = Device::cuda(device.ordinal);
    let version = |v: &std::result::Result<(i32, i32), String>| {
        v.as_ref().map_or("?".to_owned(), |(a, b)| format!("{a}.{b}"))
    };
    let (major, minor) = device.compute_capability;
    let gpu = Gpu {
        name: device.name.clone(),
        compute_capability: format!("{major}.{minor}"),
        memory_bytes: device.memory,
        multiprocessors: device.multiprocessors,
        driver: version(&report.driver),
        nvrtc: version(&report.nvrtc),
        cublaslt: report.cublaslt.clone().ok(),
        nccl: report.nccl.clone().ok(),
        integrated: device.integrated,
        unified_addressing: device.unified_addressing,
        pageable_memory_access: device.pageable_memory_access,
        capture: opened.is_ok(),
    };
    let about = format!(
        "{}, compute capability {}, {:.1} GiB {}, driver for CUDA {}, NVRTC {}, {}, {}, {}{}graph capture",
        gpu.name,
        gpu.compute_capability,
        gpu.memory_bytes as f64 / (1u64 << 30) as f64,
        if gpu.integrated { "shared with the CPU" } else { "of its own" },
        gpu.driver,
        gpu.nvrtc,
        gpu.cublaslt.as_ref().map_or("no cuBLASLt".to_owned(), |v| format!("cuBLASLt {v}")),
        gpu.nccl.as_ref().map_or("no NCCL".to_owned(), |v| format!("NCCL {v}")),
        if gpu.unified_addressing { "unified addressing, " } else { "" },
        if gpu.pageable_memory_access { "pageable access, " } else { "" },
    );
    let fix = match &opened {
        Err(e) => Some(e.to_string()),
        Ok(_) => {
            // One GPU alone exchanges values with no other.
            let nccl = report.nccl.as_ref().err().filter(|_| report.devices.len() > 1);
            report.cublaslt.as_ref().err().or(nccl).cloned()
        }
    };
    Found { name: format!("cuda:{}", device.ordinal), usable: opened.is_ok(), about, fix, gpu: Some(gpu) }
}
