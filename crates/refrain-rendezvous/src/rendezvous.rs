//! What a rank brings to the rendezvous, and how ranks come together.

use std::sync::Arc;
use std::time::Duration;

use crate::assemble::{self, Assembled};
use crate::error::{Error, ErrorKind, Result};
use crate::group::Group;
use crate::token::Token;
use crate::world::World;

/// How long ranks wait for each other if nothing else is said.
pub const ASSEMBLE: Duration = Duration::from_secs(300);

/// Within what time every rank knows that one failed if nothing else is said.
pub const WITHIN: Duration = Duration::from_secs(10);

/// The longest text of a fact, and the most facts.
const FACT: usize = 1024;
const FACTS: usize = 16;

/// The most bytes that rank 0 hands to all ranks.
pub(crate) const PAYLOAD: usize = 1 << 20;

/// Something that must be the same on every rank, such as the version of the program: its name and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    pub name: String,
    pub value: String,
}

/// Called with a line about what the rank waits for.
pub(crate) type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// What a rank brings to the rendezvous. [`join`](Rendezvous::join) waits for all ranks and makes them a [`Group`].
///
/// ```
/// use refrain_rendezvous::{Rendezvous, World};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let world = World::one(); // or World::from_environment(&WorldOptions::default())?
/// let group = Rendezvous::new(world).must_agree("version", "0.1.0").payload(vec![1, 2, 3]).join()?;
/// assert_eq!(group.payload(), [1, 2, 3]);
/// assert_eq!(group.exchange("rows", &[42])?, [[42]]);
/// group.leave()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Rendezvous {
    pub(crate) world: World,
    pub(crate) host: String,
    pub(crate) facts: Vec<Fact>,
    pub(crate) payload: Vec<u8>,
    pub(crate) token: Option<Token>,
    pub(crate) public: bool,
    pub(crate) assemble: Duration,
    pub(crate) within: Duration,
    pub(crate) notice: Notice,
}

impl Rendezvous {
    /// A rendezvous of the ranks of this world, without a secret.
    pub fn new(world: World) -> Self {
        let size = Fact { name: "world size".to_owned(), value: world.size.to_string() };
        Self {
            world,
            host: this_host(),
            facts: vec![size],
            payload: Vec::new(),
            token: None,
            public: false,
            assemble: ASSEMBLE,
            within: WITHIN,
            notice: Arc::new(|_| {}),
        }
    }

    /// Adds something that must be the same on every rank: the version of the program, a digest of the configuration, of the
    /// data. A rank that differs is an error on every rank, which names it and both values.
    pub fn must_agree(mut self, name: &str, value: &str) -> Self {
        self.facts.push(Fact { name: name.to_owned(), value: value.to_owned() });
        self
    }

    /// Bytes that every rank gets from rank 0, such as NCCL's id. Those of other ranks are not used.
    pub fn payload(mut self, bytes: Vec<u8>) -> Self {
        self.payload = bytes;
        self
    }

    /// The secret that every rank must know.
    pub fn token(mut self, token: Option<Token>) -> Self {
        self.token = token;
        self
    }

    /// Meets on public addresses without a secret, too. Whoever reaches the port can then take part in the job.
    pub fn allow_public_without_token(mut self, allow: bool) -> Self {
        self.public = allow;
        self
    }

    /// How long ranks wait for each other; [`ASSEMBLE`] if it is not set.
    pub fn assemble_within(mut self, time: Duration) -> Self {
        self.assemble = time;
        self
    }

    /// Within what time every rank knows that one died or hangs; [`WITHIN`] if it is not set.
    pub fn notice_failures_within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// What messages call this host; its own name if it is not set.
    pub fn host(mut self, host: &str) -> Self {
        self.host = host.to_owned();
        self
    }

    /// A function that is called every ten seconds with a line about what this rank waits for.
    pub fn on_wait(mut self, notice: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.notice = Arc::new(notice);
        self
    }

    /// Waits for all ranks, compares what must be the same, and hands out the payload of rank 0. A world of one waits for
    /// nobody and opens no connection.
    ///
    /// # Errors
    /// Each says what to do: an address that can't be used, a port that is taken, a host that is not known, ranks that are
    /// missing, come twice or differ, a secret that is missing or wrong.
    pub fn join(self) -> Result<Group> {
        self.check()?;
        match assemble::assemble(&self)? {
            Assembled::Alone => Group::alone(self),
            Assembled::Root(door, joined) => Group::root(self, door, joined),
            Assembled::Member(admission) => Group::member(self, admission),
        }
    }

    fn check(&self) -> Result<()> {
        let too_large = |what: &str, limit: usize| {
            Err(Error::new(
                ErrorKind::Protocol,
                format!("{what} is larger than the {limit} that a rendezvous takes"),
            ))
        };
        if self.payload.len() > PAYLOAD {
            return too_large("the payload", PAYLOAD);
        }
        if self.facts.len() > FACTS {
            return too_large("the number of things that must be the same", FACTS);
        }
        match self.facts.iter().find(|f| f.name.len() > FACT || f.value.len() > FACT) {
            Some(fact) => too_large(&format!("what must be the same as {:.40}", fact.name), FACT),
            None if self.host.len() > FACT => too_large("the name of the host", FACT),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rendezvous")
            .field("world", &self.world)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

/// The name of this host.
fn this_host() -> String {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let variable = || std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME")).ok();
    let name = kernel.or_else(variable).map(|name| name.trim().to_owned());
    name.filter(|name| !name.is_empty() && name.len() <= FACT).unwrap_or_else(|| "this host".to_owned())
}
