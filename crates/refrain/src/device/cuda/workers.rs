//! Threads that compile kernels before somebody waits for them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A piece of work for any thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Threads that do jobs in the background, at most `limit` at a time. A thread ends when no job waits.
pub(super) struct Workers {
    limit: usize,
    queue: Mutex<Queue>,
    /// Told when a thread ends.
    ended: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    threads: usize,
    /// How many [`Hired`] there are.
    users: usize,
}

/// When a job is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Before all jobs that wait, because somebody waits for it.
    Now,
    /// After all jobs that wait.
    Later,
}

/// Lets the workers work. When the last one is dropped, the jobs that have not begun are forgotten, and it waits for those
/// that have: a process must not end while one of its threads is in the compiler.
#[must_use]
pub(crate) struct Hired(Arc<Workers>);

impl Workers {
    pub(super) fn new(limit: usize) -> Arc<Workers> {
        Arc::new(Workers { limit, queue: Mutex::default(), ended: Condvar::new() })
    }

    /// Hands out jobs, to be begun in this order.
    pub(super) fn hire(self: &Arc<Self>, jobs: Vec<Job>, urgency: Urgency) -> Hired {
        let mut queue = self.lock();
        queue.users += 1;
        match urgency {
            Urgency::Now => jobs.into_iter().rev().for_each(|job| queue.waiting.push_front(job)),
            Urgency::Later => queue.waiting.extend(jobs),
        }
        let wanted = self.limit.min(queue.threads + queue.waiting.len());
        while queue.threads < wanted {
            let workers = self.clone();
            // Without another thread, whoever needs the work does it.
            if thread::Builder::new()
                .name("refrain-compile".to_string())
                .spawn(move || workers.work())
                .is_err()
            {
                break;
            }
            queue.threads += 1;
        }
        Hired(self.clone())
    }

    /// What a thread does. It has been counted.
    fn work(&self) {
        loop {
            let mut queue = self.lock();
            let Some(job) = queue.waiting.pop_front() else {
                queue.threads -= 1;
                self.ended.notify_all();
                return;
            };
            drop(queue);
            // A panic has been told, and is the end of this job alone.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hired {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.users -= 1;
        if queue.users == 0 {
            queue.waiting.clear();
        }
        let busy = |queue: &mut Queue| queue.users == 0 && queue.threads > 0;
        drop(self.0.ended.wait_while(queue, busy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(60);

    /// How many threads there are, and how many jobs wait.
    fn counts(workers: &Workers) -> (usize, usize) {
        let queue = workers.lock();
        (queue.threads, queue.waiting.len())
    }

    /// A job that says its number when it begins, and ends when it is let go.
    fn job(number: usize, begun: &Sender<usize>, go: &Arc<Mutex<Receiver<()>>>) -> Job {
        let (begun, go) = (begun.clone(), go.clone());
        Box::new(move || {
            begun.send(number).unwrap();
            let _ = go.lock().unwrap().recv();
        })
    }

    #[test]
    fn urgent_jobs_come_first_and_others_in_their_order() {
        let workers = Workers::new(1);
        let ((begun, order), (let_go, go)) = (channel(), channel());
        let go = Arc::new(Mutex::new(go));
        let jobs = |numbers: &[usize]| numbers.iter().map(|&i| job(i, &begun, &go)).collect();
        let first = workers.hire(jobs(&[0, 1, 2]), Urgency::Later);
        assert_eq!(order.recv_timeout(SOON), Ok(0));
        let second = workers.hire(jobs(&[3]), Urgency::Later);
        let third = workers.hire(jobs(&[4, 5]), Urgency::Now);
        let rest: Vec<usize> = (0..5)
            .map(|_| {
                let_go.send(()).unwrap();
                order.recv_timeout(SOON).unwrap()
            })
            .collect();
        assert_eq!(rest, [4, 5, 1, 2, 3]);
        drop(let_go);
        drop((first, second, third));
    }

    #[test]
    fn as_many_jobs_run_at_the_same_time_as_the_limit_says() {
        let workers = Workers::new(3);
        let ((begun, order), (let_go, go)) = (channel(), channel::<()>());
        let go = Arc::new(Mutex::new(go));
        let hired = workers.hire((0..5).map(|i| job(i, &begun, &go)).collect(), Urgency::Later);
        let mut three: Vec<usize> = (0..3).map(|_| order.recv_timeout(SOON).unwrap()).collect();
        three.sort_unstable();
        assert_eq!((three, counts(&workers)), (vec![0, 1, 2], (3, 2)));
        drop(let_go);
        drop(hired);
    }

    #[test]
    fn nothing_runs_after_the_last_user_is_gone() {
        let workers = Workers::new(1);
        let (begun, order) = channel();
        let (ended, ends) = channel();
        let slow: Job = Box::new(move || {
            begun.send(()).unwrap();
            thread::sleep(Duration::from_millis(50));
            ended.send(()).unwrap();
        });
        let never: Job = Box::new(|| panic!("begun after the last user was gone"));
        let first = workers.hire(vec![slow, never], Urgency::Later);
        order.recv_timeout(SOON).unwrap();
        drop(workers.hire(Vec::new(), Urgency::Later));
        assert_eq!(counts(&workers), (1, 1), "somebody still waits for it");
        drop(first);
        assert_eq!(ends.try_recv(), Ok(()));
        assert_eq!(counts(&workers), (0, 0));
    }

    #[test]
    fn a_job_that_panics_ends_alone() {
        let workers = Workers::new(1);
        let (said, heard) = channel();
        let panics: Job = Box::new(|| std::panic::resume_unwind(Box::new(())));
        let says: Job = Box::new(move || said.send(()).unwrap());
        let hired = workers.hire(vec![panics, says], Urgency::Now);
        assert_eq!(heard.recv_timeout(SOON), Ok(()));
        drop(hired);
        assert_eq!(counts(&workers), (0, 0));
    }
}
