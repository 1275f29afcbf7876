//! `REFRAIN_KERNELS=DIR`: operations that run on the CPU write the source of every kernel that they would use on
//! CUDA. So kernels can be compiled without a GPU (`cargo xtask kernels`).

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::args::{CudaArgs, Sink};
use super::kernel::{Grid, KernelSpec};
use super::params::{Addresses, Put, Words};
use super::product::{MmaKind, Product};
use crate::device::communicator::{CollectiveCall, Communicator};
use crate::device::driver::{Block, CaptureStatus, Driver, KernelSet};
use crate::device::launch::Launch;
use crate::device::program::{Bound, Executable};
use crate::error::{Error, Result};

/// The driver itself, or, if `REFRAIN_KERNELS` is set, a driver that also writes kernel sources.
pub(in crate::device) fn decorate(driver: Arc<dyn Driver>) -> Arc<dyn Driver> {
    match std::env::var_os("REFRAIN_KERNELS") {
        Some(folder) => Arc::new(Lists { driver, folder: folder.into() }),
        None => driver,
    }
}

/// A driver that writes the sources of the CUDA kernels of each launch before it runs the launch.
struct Lists {
    driver: Arc<dyn Driver>,
    folder: PathBuf,
}

impl Driver for Lists {
    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        for mma in [MmaKind::Warp, MmaKind::WarpGroup] {
            let mut listing = Listing { folder: &self.folder, launch, mma };
            launch.kernel.cuda(&mut CudaArgs::new(launch, &mut listing))?;
        }
        self.driver.launch(launch)
    }

    fn name(&self) -> String {
        self.driver.name()
    }

    fn kernels(&self) -> KernelSet {
        self.driver.kernels()
    }

    fn alloc(&self, op: &'static str, bytes: usize) -> Result<Block> {
        self.driver.alloc(op, bytes)
    }

    fn free(&self, block: Block) {
        self.driver.free(block);
    }

    fn trim(&self) -> usize {
        self.driver.trim()
    }

    fn free_bytes(&self) -> Option<usize> {
        self.driver.free_bytes()
    }

    fn pooled_bytes(&self) -> usize {
        self.driver.pooled_bytes()
    }

    fn system_allocations(&self) -> u64 {
        self.driver.system_allocations()
    }

    fn upload(&self, op: &'static str, from: &[u8], to: &Block, offset: usize) -> Result<()> {
        self.driver.upload(op, from, to, offset)
    }

    fn download(&self, op: &'static str, from: &Block, offset: usize, to: &mut [u8]) -> Result<()> {
        self.driver.download(op, from, offset, to)
    }

    fn synchronize(&self) -> Result<()> {
        self.driver.synchronize()
    }

    fn capture_status(&self) -> CaptureStatus {
        self.driver.capture_status()
    }

    fn workspace(&self, launch: &Launch<'_>) -> Result<usize> {
        self.driver.workspace(launch)
    }

    /// So that kernels of fused launches are written, too.
    fn fuses(&self) -> Option<MmaKind> {
        Some(MmaKind::Warp)
    }

    fn keeps_temporaries_apart(&self) -> bool {
        self.driver.keeps_temporaries_apart()
    }

    fn compile(&self, program: &Bound<'_>) -> Result<Box<dyn Executable>> {
        self.driver.compile(program)
    }
}

struct Listing<'a> {
    folder: &'a Path,
    launch: &'a Launch<'a>,
    mma: MmaKind,
}

impl Listing<'_> {
    fn write(&self, op: &'static str, spec: &KernelSpec) -> Result<()> {
        static SEEN: Mutex<Option<HashSet<KernelSpec>>> = Mutex::new(None);
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

impl Sink for Listing<'_> {
    fn kernel(&mut self, op: &'static str, spec: KernelSpec, _: Grid, params: &dyn Put) -> Result<()> {
        // As a GPU would be told: an operand that is not there is an error here too.
        Words::of(Addresses { launch: self.launch, faults: 0, looks: true }, params)?;
        self.write(op, &spec)
    }

    fn library_product(&mut self, _: &'static str, _: &Product) -> Result<bool> {
        Ok(false)
    }

    fn library_takes(&self, _: &Product) -> bool {
        true
    }

    /// NCCL's kernels are its own.
    fn collective(&mut self, _: &Communicator, _: CollectiveCall) -> Result<()> {
        Ok(())
    }

    fn mma(&self) -> MmaKind {
        self.mma
    }

    fn runs(&self) -> bool {
        false
    }

    fn multiprocessors(&self) -> usize {
        132
    }
}
