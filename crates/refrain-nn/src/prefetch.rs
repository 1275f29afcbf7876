//! Batches that a thread reads ahead.

use std::error::Error as StdError;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use crate::error::{Error, Result};

const WHAT: &str = "Prefetch";

type Source = Box<dyn StdError + Send + Sync>;

/// An iterator over batches that a thread of its own reads ahead into host memory, for data that does not fit on the device.
/// While the device works on a batch, the thread reads the next ones. You upload each batch where you use it, so the thread needs
/// no device: it must not use tensors.
///
/// Batches come in order. An error of the thread, or its panic, comes in the place of the batch that it could not read, and is the
/// last item. Dropping the iterator early ends the thread, once it has read the batch at hand.
///
/// ```
/// use refrain::{Device, Step, Tensor};
/// use refrain_nn::Prefetch;
///
/// let device = Device::cpu();
/// let mut step = Step::new(&device, |batch: &[Tensor]| Ok(vec![batch[0].square()?.sum(())?]));
/// // Three batches of two numbers; usually, `read` reads files.
/// let read = |batch: usize| {
///     Ok::<_, std::io::Error>((batch < 3).then(|| vec![batch as f32, 1.0]))
/// };
/// let mut sums = Vec::new();
/// for numbers in Prefetch::new(2, read)? {
///     let batch = Tensor::from_slice(&numbers?, [2], &device)?;
///     sums.push(step.call(&[batch])?.to_scalar::<f32>(0)?);
/// }
/// step.finish()?;
/// assert_eq!(sums, [1.0, 2.0, 5.0]);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct Prefetch<T> {
    /// `None` when all batches have come.
    batches: Option<Receiver<std::result::Result<T, Source>>>,
    thread: Option<JoinHandle<()>>,
    /// How many batches have come.
    count: usize,
}

impl<T: Send + 'static> Prefetch<T> {
    /// Starts a thread that calls `read` with 0, 1, 2 and so on, until it returns `None` or an error. It is at most `ahead` batches
    /// and the one that it reads ahead of the caller, so host memory holds at most `ahead + 1` batches besides yours.
    ///
    /// # Errors
    /// If `ahead` is 0, or the system has no thread left.
    pub fn new<E: Into<Source>>(
        ahead: usize,
        mut read: impl FnMut(usize) -> std::result::Result<Option<T>, E> + Send + 'static,
    ) -> Result<Prefetch<T>> {
        if ahead == 0 {
            return Err(Error::invalid(WHAT, "it is to read 0 batches ahead; use at least one"));
        }
        let (sender, batches) = sync_channel(ahead);
        let work = move || {
            for batch in 0.. {
                let item = read(batch).map_err(Into::into).transpose();
                let Some(item) = item else { return };
                let is_last = item.is_err();
                // Nobody takes it if the iterator was dropped.
                if sender.send(item).is_err() || is_last {
                    return;
                }
            }
        };
        let thread =
            std::thread::Builder::new().name("refrain-prefetch".to_owned()).spawn(work).map_err(|e| {
                Error::invalid(
                    WHAT,
                    format!("the system starts no thread ({e}); end some, or read without Prefetch"),
                )
            })?;
        Ok(Prefetch { batches: Some(batches), thread: Some(thread), count: 0 })
    }
}

impl<T> Prefetch<T> {
    /// Waits for the end of the thread. Its panic is an error.
    fn join(&mut self) -> std::result::Result<(), Source> {
        self.batches = None;
        let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) else { return Ok(()) };
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("the reading thread panicked: {}", text.unwrap_or_else(|| "no message".to_owned()))
            .into())
    }
}

impl<T> Iterator for Prefetch<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        let item = match self.batches.as_ref()?.recv() {
            Ok(item) => item,
            // The thread has ended: after the last batch, or by a panic.
            Err(_) => Err(self.join().err()?),
        };
        match item {
            Ok(batch) => {
                self.count += 1;
                Some(Ok(batch))
            }
            Err(source) => {
                // The thread has ended after this error.
                let _ = self.join();
                Some(Err(Error::Batch { batch: self.count, source }))
            }
        }
    }
}

impl<T> Drop for Prefetch<T> {
    fn drop(&mut self) {
        // Without a receiver, the thread ends at its next batch. Nobody is left to hear of a panic.
        let _ = self.join();
    }
}
