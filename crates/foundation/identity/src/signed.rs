//! The type that proves that a signature was made or checked.

use std::fmt;
use std::ops::Deref;

/// A value whose signatures and limits have been checked. Only this crate makes one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Verified<T>(T);

impl<T> Verified<T> {
    /// Wraps a value that a function of this crate has just checked.
    pub(crate) fn new(value: T) -> Self {
        Self(value)
    }

    /// The value, which from here on counts as unchecked.
    pub fn into_inner(self) -> T {
        self.0
    }
}

impl<T> Deref for Verified<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Verified<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Verified").field(&self.0).finish()
    }
}
