//! Shared values whose memory is reused for the next value of their type.
//!
//! A training step makes and drops the same handles and tape nodes again and again. Each thread keeps the memory of
//! those that it dropped, so that after the first steps a step needs no memory from the system.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use std::thread::LocalKey;

/// How many pieces of memory a thread keeps for each type. A step of a large model makes some thousands of each.
const KEPT: usize = 1 << 13;

/// The memory of dropped values of one type.
pub(crate) type FreeList<T> = RefCell<Vec<Arc<Option<T>>>>;

/// A type whose values reuse memory.
pub(crate) trait Recycle: Sized + 'static {
    /// The free list of this thread.
    fn free_list() -> &'static LocalKey<FreeList<Self>>;
}

/// Gives each thread a free list for values of a type.
macro_rules! recycle {
    ($t:ty) => {
        impl $crate::recycled::Recycle for $t {
            fn free_list() -> &'static std::thread::LocalKey<$crate::recycled::FreeList<Self>> {
                thread_local! {
                    static FREE: $crate::recycled::FreeList<$t> =
                        const { std::cell::RefCell::new(Vec::new()) };
                }
                &FREE
            }
        }
    };
}
pub(crate) use recycle;

/// An [`Arc`] whose memory comes from values that the thread has dropped.
///
/// `None` only while it is being dropped.
pub(crate) struct Recycled<T: Recycle>(Option<Arc<Option<T>>>);

impl<T: Recycle> Recycled<T> {
    pub(crate) fn new(value: T) -> Recycled<T> {
        // A thread that is ending has no free list any more.
        let mut memory = T::free_list().try_with(|free| free.borrow_mut().pop()).ok().flatten();
        match memory.as_mut().and_then(Arc::get_mut) {
            Some(place) => *place = Some(value),
            None => memory = Some(Arc::new(Some(value))),
        }
        Recycled(memory)
    }

    /// Whether both refer to the same value.
    pub(crate) fn ptr_eq(&self, other: &Recycled<T>) -> bool {
        std::ptr::eq(&**self, &**other)
    }

    /// Whether nothing else refers to the value.
    pub(crate) fn is_unique(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| Arc::strong_count(shared) == 1)
    }

    /// The value, if nothing else refers to it. If several threads drop a value at the same time, exactly one gets
    /// it.
    pub(crate) fn into_inner(mut self) -> Option<T> {
        self.release()
    }

    fn release(&mut self) -> Option<T> {
        let mut shared = self.0.take()?;
        match Arc::get_mut(&mut shared).map(Option::take) {
            Some(value) => {
                let _ = T::free_list().try_with(|free| {
                    let mut free = free.borrow_mut();
                    if free.len() < KEPT {
                        free.push(shared);
                    }
                });
                value
            }
            None => Arc::into_inner(shared).flatten(),
        }
    }
}

impl<T: Recycle> Drop for Recycled<T> {
    fn drop(&mut self) {
        // Drop it here, where the list is no longer borrowed: the value may hold others of its type.
        drop(self.release());
    }
}

impl<T: Recycle> Clone for Recycled<T> {
    fn clone(&self) -> Recycled<T> {
        Recycled(self.0.clone())
    }
}

impl<T: Recycle> Deref for Recycled<T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self.0.as_deref() {
            Some(Some(value)) => value,
            _ => unreachable!("the value is there until the last handle is dropped"),
        }
    }
}

impl<T: Recycle + std::fmt::Debug> std::fmt::Debug for Recycled<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

/// An empty list that reuses the memory of another list. The types differ only in a lifetime. Collecting in place
/// keeps the allocation.
pub(crate) fn emptied<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map(|_| -> B { unreachable!("the list is empty") }).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    struct Counted {
        _number: u64,
        _next: Option<Recycled<Counted>>,
    }
    recycle!(Counted);

    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn address(r: &Recycled<Counted>) -> usize {
        std::ptr::from_ref(&**r).addr()
    }

    #[test]
    fn a_dropped_value_leaves_its_memory_to_the_next_and_is_dropped_once() {
        let before = DROPPED.load(Ordering::Relaxed);
        let first = Recycled::new(Counted { _number: 1, _next: None });
        let second = first.clone();
        let place = address(&first);
        assert!(first.ptr_eq(&second) && !first.is_unique());
        assert!(first.into_inner().is_none());
        assert_eq!(DROPPED.load(Ordering::Relaxed), before);
        assert!(second.is_unique());
        drop(second);
        assert_eq!(DROPPED.load(Ordering::Relaxed), before + 1);
        let inner = Recycled::new(Counted { _number: 2, _next: None });
        assert_eq!(address(&inner), place);
        // A value that holds another value of its type.
        drop(Recycled::new(Counted { _number: 3, _next: Some(inner) }));
        assert_eq!(DROPPED.load(Ordering::Relaxed), before + 3);

        // The last of many threads drops it.
        let shared = Recycled::new(Counted { _number: 4, _next: None });
        std::thread::scope(|scope| {
            for _ in 0..8 {
                let mine = shared.clone();
                scope.spawn(move || drop(mine));
            }
            drop(shared);
        });
        assert_eq!(DROPPED.load(Ordering::Relaxed), before + 4);
    }
}
