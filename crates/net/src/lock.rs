//! Locking that survives a panic of the application's callback.

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

/// Locks a mutex, even a poisoned one. Only an application's callback can panic while its thread
/// holds the lock, and the state behind the lock is then consistent.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
