//! `REFRAIN_KERNELS=DIR`: operations that run on the CPU write down the text of every kernel that they
//! would use on CUDA, so that kernels can be compiled where there is no GPU (`cargo xtask kernels`).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::args::{CudaArgs, Sink};
use super::faults::Bounds;
use super::gemm::{Cores, Product};
use super::kernel::{Grid, Params, Spec};
use crate::device::launch::Launch;
use crate::error::{Error, Result};

/// Where the texts go, if anybody wants them.
fn folder() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    FOLDER.get_or_init(|| std::env::var_os("REFRAIN_KERNELS").map(PathBuf::from)).as_deref()
}

/// Writes down the kernels of a launch.
pub(in crate::device) fn add(launch: &Launch<'_>) -> Result<()> {
    match folder() {
        None => Ok(()),
        Some(folder) => [Cores::Warps, Cores::WarpGroups].into_iter().try_for_each(|cores| {
            launch.kernel.cuda(&mut CudaArgs::new(launch, &mut Listing { folder, cores }))
        }),
    }
}

struct Listing {
    folder: &'static Path,
    cores: Cores,
}

impl Listing {
    fn write(&self, op: &'static str, spec: &Spec) -> Result<()> {
        static SEEN: Mutex<Option<HashSet<Spec>>> = Mutex::new(None);
        let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        if !seen.get_or_insert_default().insert(spec.clone()) {
            return Ok(());
        }
        let text = format!("// {}\n{}", spec.label(), spec.text());
        let name =
            format!("{}-{}-{:016x}.cu", spec.source.name, spec.entry, super::cache::hash(text.as_bytes()));
        std::fs::create_dir_all(self.folder)
            .and_then(|()| std::fs::write(self.folder.join(name), text))
            .map_err(|e| Error::invalid(op, format!("REFRAIN_KERNELS={}: {e}", self.folder.display())))
    }
}

impl Sink for Listing {
    fn kernel(&mut self, op: &'static str, spec: Spec, _: Grid, _: &Params) -> Result<()> {
        self.write(op, &spec)
    }

    fn product(&mut self, op: &'static str, product: &Product) -> Result<()> {
        product.kernels(self.cores).iter().try_for_each(|(spec, _)| self.write(op, spec))
    }

    fn cores(&self) -> Cores {
        self.cores
    }

    fn multiprocessors(&self) -> usize {
        132
    }

    fn faults(&self, _: &'static str, _: Bounds) -> [u64; 2] {
        [0; 2]
    }
}
