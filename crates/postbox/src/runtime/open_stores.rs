//! The stores that are open in this process: two opens of one store share it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

use crate::runtime::lock;

/// Stores in use by key. A store stays open as long as it has another owner.
pub(crate) struct OpenStores<K, S> {
    state: Mutex<State<K, S>>,
}

struct State<K, S> {
    stores: HashMap<K, Weak<S>>,
    /// The number of entries at which those of closed stores are removed.
    sweep_at: usize,
}

/// Entries are not removed while there are fewer than this.
const MIN_SWEEP: usize = 64;

impl<K, S> Default for OpenStores<K, S> {
    fn default() -> Self {
        OpenStores { state: Mutex::new(State { stores: HashMap::new(), sweep_at: MIN_SWEEP }) }
    }
}

impl<K: Eq + Hash, S> OpenStores<K, S> {
    /// The store with a key, if it is open.
    #[cfg(any(feature = "sqlite", feature = "aws"))]
    pub(crate) fn get(&self, key: &K) -> Option<Arc<S>> {
        lock(&self.state).stores.get(key)?.upgrade()
    }

    /// The store with a key. Opens it unless it is open and usable.
    pub(crate) fn get_or_open<E>(
        &self,
        key: K,
        is_usable: impl FnOnce(&S) -> bool,
        open: impl FnOnce() -> Result<Arc<S>, E>,
    ) -> Result<Arc<S>, E> {
        let mut state = lock(&self.state);
        if let Some(store) = state.stores.get(&key).and_then(Weak::upgrade).filter(|store| is_usable(store)) {
            return Ok(store);
        }
        let store = open()?;
        if state.stores.len() >= state.sweep_at {
            state.stores.retain(|_, store| store.strong_count() > 0);
            state.sweep_at = MIN_SWEEP.max(state.stores.len() * 2);
        }
        state.stores.insert(key, Arc::downgrade(&store));
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn a_store_is_shared_while_it_is_used_and_usable() {
        let stores = OpenStores::<u32, &str>::default();
        let open = |name| move || Ok::<_, Infallible>(Arc::new(name));
        let Ok(first) = stores.get_or_open(1, |_| true, open("first"));
        let Ok(same) = stores.get_or_open(1, |_| true, open("second"));
        assert!(Arc::ptr_eq(&first, &same));
        let Ok(third) = stores.get_or_open(1, |_| false, open("third"));
        assert_eq!(*third, "third");
        drop(third);
        let Ok(fourth) = stores.get_or_open(1, |_| true, open("fourth"));
        assert_eq!(*fourth, "fourth");
    }

    #[test]
    fn entries_of_closed_stores_are_removed() {
        let stores = OpenStores::<u32, u32>::default();
        for number in 0..10_000 {
            let Ok(_) = stores.get_or_open(number, |_| true, || Ok::<_, Infallible>(Arc::new(number)));
        }
        assert!(lock(&stores.state).stores.len() <= MIN_SWEEP);
    }
}
