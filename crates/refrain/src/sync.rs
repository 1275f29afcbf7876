//! What threads share: the types of the standard library, or with `--cfg shuttle` those of
//! [shuttle](https://docs.rs/shuttle), with which `tests/schedules.rs` runs threads in many orders.

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic},
    thread, thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic},
    thread, thread_local,
};

/// A point in long work at which shuttle may switch to another thread.
#[inline]
pub(crate) fn may_switch() {
    #[cfg(shuttle)]
    thread::yield_now();
}

/// Calls `f` while a flag of this thread is `value`. Afterwards the flag is what it was, also if `f` panics. `replace` sets the
/// flag and returns its old value.
pub(crate) fn with_flag<R>(replace: impl Fn(bool) -> bool, value: bool, f: impl FnOnce() -> R) -> R {
    struct Restore<F: Fn(bool) -> bool>(F, bool);
    impl<F: Fn(bool) -> bool> Drop for Restore<F> {
        fn drop(&mut self) {
            (self.0)(self.1);
        }
    }
    let before = replace(value);
    let _restore = Restore(replace, before);
    f()
}

/// The methods that the standard library's thread-local cells have besides `with`.
#[cfg(shuttle)]
pub(crate) mod keys {
    use std::cell::{Cell, RefCell};

    use shuttle::thread::LocalKey;

    pub(crate) trait CellKey<T> {
        fn get(&'static self) -> T
        where
            T: Copy;
        fn set(&'static self, value: T);
        fn replace(&'static self, value: T) -> T;
    }

    impl<T> CellKey<T> for LocalKey<Cell<T>> {
        fn get(&'static self) -> T
        where
            T: Copy,
        {
            self.with(Cell::get)
        }

        fn set(&'static self, value: T) {
            self.with(|cell| cell.set(value));
        }

        fn replace(&'static self, value: T) -> T {
            self.with(|cell| cell.replace(value))
        }
    }

    pub(crate) trait RefCellKey<T> {
        fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R;
        fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R;
        fn set(&'static self, value: T);
        fn take(&'static self) -> T
        where
            T: Default;
    }

    impl<T> RefCellKey<T> for LocalKey<RefCell<T>> {
        fn with_borrow<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
            self.with(|cell| f(&cell.borrow()))
        }

        fn with_borrow_mut<R>(&'static self, f: impl FnOnce(&mut T) -> R) -> R {
            self.with(|cell| f(&mut cell.borrow_mut()))
        }

        fn set(&'static self, value: T) {
            self.with(|cell| drop(cell.replace(value)));
        }

        fn take(&'static self) -> T
        where
            T: Default,
        {
            self.with(RefCell::take)
        }
    }
}
