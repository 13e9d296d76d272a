//! Numbers that the network must not predict: ports, identifications, sequence numbers.

use std::hash::{BuildHasher, Hash, Hasher};

/// SipHash of a counter under a secret key: past numbers tell nothing about later ones.
pub(crate) struct Random {
    keys: std::hash::BuildHasherDefault<std::collections::hash_map::DefaultHasher>,
    secret: u64,
    count: u64,
}

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random { keys: Default::default(), secret: seed, count: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.count += 1;
        // The secret goes in twice, around the counter, since the standard library's keyed
        // constructor is not public.
        let mut hasher = self.keys.build_hasher();
        hasher.write_u64(self.secret);
        hasher.write_u64(self.count);
        hasher.write_u64(self.secret.rotate_left(32));
        hasher.finish()
    }

    /// Returns the same number for the same value, unpredictable without the secret.
    pub(crate) fn keyed(&self, thing: &impl Hash) -> u64 {
        let mut hasher = self.keys.build_hasher();
        hasher.write_u64(!self.secret);
        thing.hash(&mut hasher);
        hasher.write_u64(self.secret.rotate_left(32));
        hasher.finish()
    }
}
