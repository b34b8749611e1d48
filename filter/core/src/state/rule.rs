//! Rules that a test can switch off, to see that the model test finds what they prevent. Built for anything else, every
//! rule is on, and the question costs nothing.

/// A clause of the protocol, under its number in `docs/dataplane.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// A bucket loses to a higher stamp.
    S3,
    /// Buckets under the floor read as empty.
    S7,
    /// "Unknown" is said only of complete and current state.
    S8,
    /// A bucket that is ahead of head is believed only by a list that is as new.
    S8List,
    /// A blocked list loses to a higher stamp.
    S10Stamp,
    /// Owners that a new list lacks are blocked until the keys have come as far.
    S10Leaving,
    /// A stream whose list comes after a newer one ends, unless the keys are past it.
    S10Behind,
    /// A profile of another id is none.
    S11,
}

#[cfg(not(test))]
#[inline(always)]
pub(super) const fn on(_: Rule) -> bool {
    true
}

#[cfg(test)]
pub(super) fn on(rule: Rule) -> bool {
    OFF.get() != Some(rule)
}

#[cfg(test)]
thread_local! {
    static OFF: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Runs `test` without one rule.
#[cfg(test)]
pub(super) fn without<T>(rule: Option<Rule>, test: impl FnOnce() -> T) -> T {
    OFF.set(rule);
    let result = test();
    OFF.set(None);
    result
}
