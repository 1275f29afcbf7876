//! The team of the CPU's kernels: threads that share the work of a kernel with the thread that runs it.
//!
//! A thread *leads* a region: it opens a piece of work on a desk of the team, takes part in it, and ends when all of it is
//! done. Helpers that have nothing to do look at the desks and join what is open. Nobody waits for a helper that has not
//! joined: the leader could do all work alone. So threads may lead at the same time, a helper may lead a region inside
//! of another, and a core that is busy with something else holds nobody up.
//!
//! To open a region and to join it takes well below a microsecond, as long as the helpers still look; they do so for a
//! while after their last work ([`AWAKE`]) and then sleep. All helpers join at the same moment, so none of them writes what
//! another one reads: each says where it is on a cache line of its own, which only the leader looks at.
#![allow(unsafe_code)] // A region borrows from its leader's stack, and is read without a lock; see `lead` and `Lead`.

use std::any::Any;
use std::cell::UnsafeCell;
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How long helpers look for work before they sleep. To wake a thread takes longer than a small kernel, and the system may wake it on
/// the core of the leader; between the launches of a training loop is less.
const AWAKE: Duration = Duration::from_millis(2);

/// Who gives up its core for a moment and gets it back only after this time shares it with another thread.
const SHARED: Duration = Duration::from_micros(50);

/// Looks at a region by helpers that it has no work for, before they join it all the same: those that it has work for may be busy.
const PATIENCE: u32 = 32;

/// Looks at the desks between two looks at the clock, when a helper also lets other threads have its core.
const LOOKS: u32 = 256;

/// Regions that can be open at a time. A thread that finds no free desk works alone.
const DESKS: usize = 8;

/// The work of a region, called by each thread that takes part with its number in the team; the leader is number 0. It returns
/// whether there was something to do.
pub(super) type Region<'a> = &'a (dyn Fn(usize) -> bool + Sync + 'a);

/// Threads that work together.
pub(super) struct Team {
    desks: [Desk; DESKS],
    helpers: Vec<Helper>,
    /// Its threads, with the one that leads.
    threads: AtomicUsize,
    /// Helpers that sleep.
    sleepers: AtomicUsize,
}

/// A thread of the team, which is number 1 or above.
#[derive(Default)]
struct Helper {
    /// Known when it has begun.
    thread: OnceLock<Thread>,
    sleeps: AtomicBool,
    /// The desk whose region it is in, or looks at: the index plus 1, or 0.
    desk: Alone<AtomicUsize>,
}

/// A place for a region.
#[derive(Default)]
struct Desk {
    /// The number of the region, whether it is open, and how many helpers it has work for: see [`OPEN`] and [`NUMBER`]. Helpers look
    /// at it all the time.
    state: Alone<AtomicU64>,
    lead: Alone<Lead>,
}

/// What only a leader and those who join its region look at.
#[derive(Default)]
struct Lead {
    is_taken: AtomicBool,
    /// What is to be done.
    region: UnsafeCell<Option<Region<'static>>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: of its fields, only `region` may not be shared. `open` and `close` write it, which only the leader calls that has taken the
// desk, and only while the desk is closed and no helper is in its region. A helper reads it between `join` and `leave`, and is in the
// region then. So nobody reads it while it is written, and `state`, which is written behind it, tells helpers that it was.
unsafe impl Sync for Lead {}

/// A value on cache lines of its own: what one thread writes is not what another one waits for. Some processors load lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Alone<T>(pub(super) T);

/// In the state of a desk: helpers may join. The bits below are how many of them have work.
const OPEN: u64 = 1 << 16;
/// In the state of a desk: the number of the region is a multiple of this.
const NUMBER: u64 = 1 << 17;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Team {
    /// A team of so many threads, with the one that leads. It has fewer if the system gives no more. `begin` is called first on each
    /// new thread. The threads never end.
    pub(super) fn new(threads: usize, begin: fn(&'static Team)) -> &'static Team {
        let team: &Team = Box::leak(Box::new(Team {
            desks: Default::default(),
            helpers: (1..threads).map(|_| Helper::default()).collect(),
            threads: AtomicUsize::new(1),
            sleepers: AtomicUsize::new(0),
        }));
        for number in 1..threads {
            let thread = thread::Builder::new().name(format!("refrain-cpu-{number}"));
            let help = move || {
                // The system looks for an idle core for a thread that wakes up.
                thread::sleep(SHARED);
                begin(team);
                team.help(number);
            };
            if thread.spawn(help).is_err() {
                break;
            }
            team.threads.fetch_add(1, Relaxed);
        }
        // Those that have begun on this core leave it.
        thread::yield_now();
        team
    }

    /// The threads of the team, with the one that leads.
    pub(super) fn threads(&self) -> usize {
        self.threads.load(Relaxed)
    }

    /// Calls `region` on this thread, and meanwhile on others of the team that have nothing to do: with 0 here, and at most once with
    /// each other number. It has work for so many `helpers`. Returns when all calls have returned.
    ///
    /// # Panics
    /// If a call does, when all others have returned.
    pub(super) fn lead(&self, helpers: usize, region: Region<'_>) {
        let Some(index) = self.desks.iter().position(Desk::take) else {
            region(0);
            return;
        };
        let desk = &self.desks[index];
        // SAFETY: this only extends the lifetime. The region is used by this thread and by helpers between `join` and `leave`.
        // `close`, which is reached below whatever happens (a panic of the region is caught) and does not panic, waits until all that
        // have joined have left, and lets no other one join. So nobody uses it after this function has returned.
        let shared = unsafe { std::mem::transmute::<Region<'_>, Region<'static>>(region) };
        desk.open(shared, helpers);
        let mine = catch_unwind(AssertUnwindSafe(|| {
            self.wake(helpers, index);
            region(0);
        }));
        let theirs = self.close(index);
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Lets nobody join any more, waits until all have left, and frees the desk. Returns the panic of a helper.
    fn close(&self, index: usize) -> Option<Box<dyn Any + Send>> {
        let Desk { state, lead: Alone(lead) } = &self.desks[index];
        state.0.fetch_and(!OPEN, SeqCst);
        let (mut looks, mut begun) = (0u32, None);
        for helper in &self.helpers {
            // A helper says where it is and then looks whether the desk is open; this thread has closed it and then looks where the
            // helper is. So one of them sees the other.
            while helper.desk.0.load(SeqCst) == index + 1 {
                looks = looks.wrapping_add(1);
                if !looks.is_multiple_of(LOOKS) {
                    spin_loop();
                } else if begun.get_or_insert_with(Instant::now).elapsed() < AWAKE {
                    // The helper may need this core.
                    thread::yield_now();
                } else {
                    thread::sleep(SHARED);
                }
            }
        }
        // SAFETY: the desk is closed, and no helper is in its region: see `Lead`.
        unsafe { *lead.region.get() = None };
        let panic = lock(&lead.panic).take();
        lead.is_taken.store(false, Release);
        panic
    }

    /// Wakes helpers that sleep for the region of a desk with work for the first so many: two, if there are. Each wakes two more when it
    /// has joined a region for more. Others take the place of those that are in other regions.
    fn wake(&self, helpers: usize, index: usize) {
        if self.sleepers.load(SeqCst) == 0 {
            return;
        }
        let is_elsewhere = |helper: &&Helper| ![0, index + 1].contains(&helper.desk.0.load(Relaxed));
        let elsewhere = self.helpers.iter().take(helpers).filter(is_elsewhere).count();
        self.helpers
            .iter()
            .take(helpers + elsewhere)
            .filter(|helper| self.ends_sleep(helper))
            .take(helpers.min(2))
            .for_each(|helper| {
                helper.thread.get().into_iter().for_each(Thread::unpark);
            });
    }

    /// Whether a helper slept, and now does no longer.
    fn ends_sleep(&self, helper: &Helper) -> bool {
        let slept = helper.sleeps.load(SeqCst) && helper.sleeps.swap(false, SeqCst);
        if slept {
            self.sleepers.fetch_sub(1, SeqCst);
        }
        slept
    }

    /// The life of a helper.
    fn help(&self, number: usize) {
        let helper = &self.helpers[number - 1];
        helper.thread.get_or_init(thread::current);
        let mut seen = [Seen::default(); DESKS];
        let mut last = Instant::now();
        let mut slept = true;
        loop {
            if self.look_for_work(number, &mut seen, &mut slept) {
                last = Instant::now();
            } else if last.elapsed() < AWAKE {
                let begun = Instant::now();
                thread::yield_now();
                if begun.elapsed() > SHARED {
                    // The other one may be the leader. The system looks for an idle core for a thread that wakes up.
                    thread::sleep(SHARED);
                }
            } else {
                slept = self.sleep(number, &seen);
                last = Instant::now();
            }
        }
    }

    /// Joins what is open, or looks for it a while. Whether there was something to do.
    fn look_for_work(&self, number: usize, seen: &mut [Seen; DESKS], slept: &mut bool) -> bool {
        for _ in 0..LOOKS {
            for (index, seen) in seen.iter_mut().enumerate() {
                let Some((region, helpers)) = self.join(number, index, seen) else { continue };
                if std::mem::take(slept) && helpers > 2 {
                    self.wake(helpers, index);
                }
                let end = catch_unwind(AssertUnwindSafe(|| region(number)));
                let has_worked = *end.as_ref().unwrap_or(&true);
                self.leave(number, index, end.err());
                return has_worked;
            }
            spin_loop();
        }
        false
    }

    /// Joins the region of a desk, if it was not in it before.
    fn join(&self, number: usize, index: usize, seen: &mut Seen) -> Option<(Region<'static>, usize)> {
        let Desk { state, lead: Alone(lead) } = &self.desks[index];
        if !seen.takes(state.0.load(Relaxed), number) {
            return None;
        }
        let own = &self.helpers[number - 1].desk.0;
        own.store(index + 1, SeqCst);
        let now = state.0.load(SeqCst);
        if !seen.is_new(now) {
            // It was closed a moment ago.
            own.store(0, Release);
            return None;
        }
        seen.joined = now / NUMBER;
        // SAFETY: the desk was open after this helper said that it is in its region: see `Lead`.
        let region = unsafe { *lead.region.get() };
        // While the desk is open, there is one.
        Some((region.unwrap_or(&|_| false), helpers_of(now)))
    }

    /// Leaves the region.
    fn leave(&self, number: usize, index: usize, panic: Option<Box<dyn Any + Send>>) {
        // An earlier one is dropped when this helper has left, which the leader waits for: to drop it may panic.
        let earlier = panic.and_then(|panic| lock(&self.desks[index].lead.0.panic).replace(panic));
        self.helpers[number - 1].desk.0.store(0, Release);
        drop(earlier);
    }

    /// Sleeps until it is woken. Whether it slept: not if a region is open that it has not seen.
    fn sleep(&self, number: usize, seen: &[Seen; DESKS]) -> bool {
        let helper = &self.helpers[number - 1];
        // In this order, so that nobody ends a sleep that is not counted.
        self.sleepers.fetch_add(1, SeqCst);
        helper.sleeps.store(true, SeqCst);
        // A leader opens a region and then looks for sleepers; this thread says that it sleeps and then looks for a region. So one of
        // them sees the other.
        if self.desks.iter().zip(seen).any(|(desk, seen)| seen.is_new(desk.state.0.load(SeqCst))) {
            return !self.ends_sleep(helper);
        }
        while helper.sleeps.load(SeqCst) {
            thread::park();
        }
        true
    }
}

/// What a helper has seen of a desk.
#[derive(Clone, Copy, Default)]
struct Seen {
    /// The number of the last region that it joined.
    joined: u64,
    /// The number of the last region that had no work for it, and how often it has looked at that.
    watched: u64,
    looks: u32,
}

impl Seen {
    /// Whether a state is that of an open region that the helper has not joined.
    fn is_new(&self, state: u64) -> bool {
        state & OPEN != 0 && state / NUMBER != self.joined
    }

    /// Whether helper `number` joins such a region: at once if it is among the first, for as many as there is work, so that each thread has
    /// the same part at each launch, and nobody joins a short loop who is not needed.
    fn takes(&mut self, state: u64, number: usize) -> bool {
        if !self.is_new(state) || number <= helpers_of(state) {
            return self.is_new(state);
        }
        if self.watched != state / NUMBER {
            (self.watched, self.looks) = (state / NUMBER, 0);
        }
        self.looks += 1;
        self.looks > PATIENCE
    }
}

/// How many helpers the region of a state has work for.
fn helpers_of(state: u64) -> usize {
    (state & (OPEN - 1)) as usize
}

impl Desk {
    /// Takes the desk, if it is free.
    fn take(&self) -> bool {
        let is_taken = &self.lead.0.is_taken;
        !is_taken.load(Relaxed) && !is_taken.swap(true, Acquire)
    }

    /// Lets helpers join a region with the next number.
    fn open(&self, region: Region<'static>, helpers: usize) {
        // SAFETY: this thread has taken the desk, which is closed, and no helper is in its region: see `Lead`.
        unsafe { *self.lead.0.region.get() = Some(region) };
        let number = self.state.0.load(Relaxed) / NUMBER + 1;
        let helpers = (helpers as u64).min(OPEN - 1);
        self.state.0.store(number * NUMBER + OPEN + helpers, SeqCst);
    }
}
