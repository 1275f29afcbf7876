//! `cargo xtask`: the project's own tools.

mod bundle;
mod kernels;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

/// The project's own tools
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Put the command and all tests into one folder that runs on a machine with a GPU but without Rust
    Bundle {
        /// The folder to make
        #[arg(long, value_name = "DIR", default_value = "target/bundle")]
        out: PathBuf,
    },
    /// Compile the kernels that tests wrote with REFRAIN_KERNELS=DIR, with NVRTC; no GPU is needed
    Kernels {
        /// The folder with the kernels' sources
        folder: PathBuf,
        /// Architectures for all kernels
        #[arg(long, value_name = "SM", value_delimiter = ',', default_value = "sm_90a")]
        arch: Vec<String>,
        /// Architectures for one specialisation of each kernel
        #[arg(long, value_name = "SM", value_delimiter = ',', default_value = "sm_80,sm_100,sm_120,sm_121")]
        sample_arch: Vec<String>,
        /// Compile at most this many specialisations of a kernel, spread evenly over all
        #[arg(long, value_name = "N")]
        most: Option<usize>,
        /// Allowed bytes of spilled registers; five times as many in f64, three times in small products with a tail
        #[arg(long, value_name = "BYTES", default_value_t = 128)]
        spill: usize,
        /// The share of this process: I/N
        #[arg(long, value_name = "I/N", hide = true)]
        share: Option<kernels::Share>,
    },
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Bundle { out } => bundle::make(&out),
        Task::Kernels { folder, arch, sample_arch, most, spill, share } => {
            let jobs = kernels::jobs(&folder, &arch, &sample_arch, most.unwrap_or(usize::MAX))?;
            match share {
                None => kernels::share_out(jobs.len()),
                Some(share) => kernels::compile(&jobs, share, spill),
            }
        }
    }
}

/// The folder of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
