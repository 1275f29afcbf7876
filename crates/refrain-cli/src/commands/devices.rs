//! `refrain devices`.

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

/// A kind of device.
#[derive(Serialize)]
struct Found {
    name: &'static str,
    usable: bool,
    about: String,
    /// What to do so that it can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

pub fn run(args: Devices) -> Result<()> {
    let console = Console::new(args.json);
    let devices = vec![cpu(), nvidia()];
    for device in &devices {
        let state = if device.usable { "ready" } else { "not used" };
        console.line(format!("{:<8}{state:<10}{}", device.name, device.about))?;
        if let Some(fix) = &device.fix {
            console.line(format!("{:<18}{fix}", ""))?;
        }
    }
    let best = refrain::Device::best().name();
    console.line(format!("\n--device auto takes {best}"))?;
    console.result(&Outcome { devices, best })
}

fn cpu() -> Found {
    let threads = rayon::current_num_threads();
    let cores = std::thread::available_parallelism().map_or(threads, usize::from);
    let instructions = simd().join(", ");
    let fix = (threads < cores).then(|| format!("{cores} cores are there: --threads {cores} uses all"));
    let about = format!("{} threads, {}, {instructions}", threads, std::env::consts::ARCH);
    Found { name: "cpu", usable: true, about, fix }
}

/// The vector instructions of this machine.
#[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
fn simd() -> Vec<&'static str> {
    let found = [
        ("AVX-512", std::arch::is_x86_feature_detected!("avx512f")),
        (
            "AVX2 and FMA",
            std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma"),
        ),
    ];
    let found: Vec<_> = found.into_iter().filter(|(_, here)| *here).map(|(name, _)| name).collect();
    if found.is_empty() { vec!["SSE2"] } else { found }
}

#[cfg(target_arch = "aarch64")]
fn simd() -> Vec<&'static str> {
    vec!["NEON"]
}

#[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
fn simd() -> Vec<&'static str> {
    vec!["no vector instructions known"]
}

/// GPUs of NVIDIA, told by the kernel driver's files; nothing of them is loaded.
fn nvidia() -> Found {
    let gpus = std::fs::read_dir("/proc/driver/nvidia/gpus").map_or(0, |entries| entries.flatten().count());
    let version = env!("CARGO_PKG_VERSION");
    let (about, fix) = match gpus {
        0 => ("no NVIDIA GPU with a running driver here".to_owned(), None),
        gpus => (
            format!("{gpus} NVIDIA GPU{} here", if gpus == 1 { "" } else { "s" }),
            Some(format!(
                "refrain {version} computes on the processor only; nothing to install changes that"
            )),
        ),
    };
    Found { name: "cuda", usable: false, about, fix }
}
