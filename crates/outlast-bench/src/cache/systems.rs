//! The caches that run in this process.

use crate::Fallible;

/// The name of ours.
pub(super) const OURS: &str = "outlast";

/// A cache.
pub(super) struct System {
    pub(super) name: &'static str,
    /// Looks a key up, and inserts it if it is absent. Returns whether it was there.
    pub(super) request: Box<dyn FnMut(u64) -> Fallible<bool>>,
}

fn ours(capacity: usize) -> Fallible<System> {
    let pool = outlast::PoolOptions::new().anonymous()?;
    let cache = super::ours(&pool, capacity)?;
    let request = move |key| match cache.get(&key)? {
        Some(_) => Ok(true),
        None => {
            cache.insert(&key, &key)?;
            Ok(false)
        }
    };
    Ok(System { name: OURS, request: Box::new(request) })
}

/// Makes all systems, empty.
pub(super) fn all(capacity: usize) -> Fallible<Vec<System>> {
    #[cfg_attr(not(feature = "caches"), expect(unused_mut, reason = "there are no rivals"))]
    let mut all = vec![ours(capacity)?];
    #[cfg(feature = "caches")]
    {
        let cache = moka::sync::Cache::<u64, u64>::new(capacity as u64);
        let request = move |key| {
            let found = cache.get(&key).is_some();
            if !found {
                cache.insert(key, key);
            }
            Ok(found)
        };
        all.push(System { name: "moka", request: Box::new(request) });
        let cache = quick_cache::sync::Cache::<u64, u64>::new(capacity);
        let request = move |key| {
            let found = cache.get(&key).is_some();
            if !found {
                cache.insert(key, key);
            }
            Ok(found)
        };
        all.push(System { name: "quick_cache", request: Box::new(request) });
    }
    Ok(all)
}
