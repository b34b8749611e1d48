//! Imports of the host's calls; with the feature `count` each call is counted by its name, for the bench.

/// Declares host calls of one import module. As shipped these are plain imports.
#[cfg(not(feature = "count"))]
macro_rules! host_calls {
    ($module:literal { $(pub fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> u32;)* }) => {
        #[link(wasm_import_module = $module)]
        unsafe extern "C" {
            $(pub fn $name($($arg: $ty),*) -> u32;)*
        }
    };
}

#[cfg(feature = "count")]
macro_rules! host_calls {
    ($module:literal { $(pub fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> u32;)* }) => {
        $(
            #[allow(clippy::too_many_arguments, reason = "the host's calls have as many as they have")]
            pub unsafe fn $name($($arg: $ty),*) -> u32 {
                #[link(wasm_import_module = $module)]
                unsafe extern "C" {
                    fn $name($($arg: $ty),*) -> u32;
                }
                crate::count::tally::call(stringify!($name));
                // SAFETY: the caller keeps what the import asks for.
                unsafe { $name($($arg),*) }
            }
        )*
    };
}

#[cfg(feature = "count")]
pub mod tally {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use crate::host::{self, Metric};

    thread_local! {
        static CALLS: RefCell<BTreeMap<&'static str, i64>> = const { RefCell::new(BTreeMap::new()) };
        static METRICS: RefCell<BTreeMap<String, u32>> = const { RefCell::new(BTreeMap::new()) };
        static PUBLISHING: Cell<bool> = const { Cell::new(false) };
    }

    pub fn call(name: &'static str) {
        if !PUBLISHING.get() {
            CALLS.with_borrow_mut(|calls| *calls.entry(name).or_default() += 1);
        }
    }

    /// Adds the calls since the last time to the counters `host_calls.<by>.<name>`; its own calls do not count.
    pub fn publish(by: &str) {
        PUBLISHING.set(true);
        for (name, calls) in CALLS.take() {
            let metric = format!("host_calls.{by}.{name}");
            let id = METRICS.with_borrow(|known| known.get(&metric).copied());
            let Some(id) = id.or_else(|| host::define_metric(Metric::Counter, &metric).ok()) else { continue };
            METRICS.with_borrow_mut(|known| known.insert(metric, id));
            // A count that is lost shows as a fraction of a call.
            let _ = host::increment_metric(id, calls);
        }
        PUBLISHING.set(false);
    }
}
