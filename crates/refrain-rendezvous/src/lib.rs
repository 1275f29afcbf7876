//! How the processes of a distributed training job find each other, agree on what they do, and learn that one of them failed.
//!
//! The processes are started by something else: torchrun, `srun`, `mpirun`, a Kubernetes Indexed Job. Each then
//!
//! 1. reads its rank from the environment ([`World::from_environment`]),
//! 2. meets the others ([`Rendezvous::join`]): rank 0 listens, the others connect; versions, configurations and data are
//!    compared, and every rank gets bytes of rank 0, such as NCCL's id,
//! 3. works with the others as a [`Group`]: [`exchange`](Group::exchange) gives bytes to all, and
//!    [`begin_step`](Group::begin_step) stops all at the same step.
//!
//! A rank that dies, hangs or leaves something out is a [`Failure`] on every other rank within ten seconds.
//!
//! ```no_run
//! use refrain_rendezvous::{Phase, RANK_FAILED, Rendezvous, Token, World, WorldOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let world = World::from_environment(&WorldOptions::default())?;
//! let group = Rendezvous::new(world)
//!     .token(Token::from_environment()?)
//!     .must_agree("version", env!("CARGO_PKG_VERSION"))
//!     .must_agree("configuration", "digest of the configuration")
//!     .join()?;
//! group.on_failure(|failure| {
//!     eprintln!("{failure}");
//!     std::process::exit(RANK_FAILED.into());
//! });
//! group.set_phase(Phase::Training);
//! let mut step = 0;
//! while step < 1000 && group.begin_step(step)? {
//!     // the forward and backward pass, collectives, the optimiser
//!     step += 1;
//! }
//! group.leave()?;
//! # Ok(())
//! # }
//! ```
//!
//! The crate uses threads and blocking sockets, no runtime. What ranks send each other is not encrypted: a [`Token`] says who
//! may join, and a network that others listen on needs a tunnel.

mod address;
mod assemble;
mod error;
mod group;
mod rendezvous;
mod token;
mod wire;
mod world;

pub use address::Address;
pub use error::{Error, ErrorKind, Result};
pub use group::{Failure, Group, Phase, RANK_FAILED};
pub use rendezvous::{ASSEMBLE, Rendezvous, WITHIN};
pub use token::{TOKEN_VARIABLE, Token};
pub use world::{World, WorldOptions};
