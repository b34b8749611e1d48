//! Where an answer waits until the test lets it go on.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

/// A turnstile: answers queue at it, the test lets them through. Clones are the same turnstile.
#[derive(Clone, Debug)]
pub struct Hold {
    passes: Arc<Semaphore>,
    arrived: Arc<watch::Sender<usize>>,
}

impl Default for Hold {
    fn default() -> Self {
        Self { passes: Arc::new(Semaphore::new(0)), arrived: Arc::new(watch::Sender::new(0)) }
    }
}

impl Hold {
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets `n` more arrivals through.
    pub fn release(&self, n: usize) {
        self.passes.add_permits(n);
    }

    /// Lets everybody through from now on.
    pub fn open(&self) {
        self.passes.close();
    }

    /// Returns once `n` answers in all have come to this point.
    pub async fn arrivals(&self, n: usize) {
        let mut arrived = self.arrived.subscribe();
        // The sender lives in self, so the wait cannot fail.
        let _ = arrived.wait_for(|seen| *seen >= n).await;
    }

    pub(crate) async fn pass(&self) {
        self.arrived.send_modify(|seen| *seen += 1);
        // A closed semaphore is an open turnstile.
        if let Ok(permit) = self.passes.acquire().await {
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_release_lets_one_through() {
        let hold = Hold::new();
        let one = tokio::spawn({
            let hold = hold.clone();
            async move { hold.pass().await }
        });
        let two = tokio::spawn({
            let hold = hold.clone();
            async move { hold.pass().await }
        });
        hold.arrivals(2).await;
        assert!(!one.is_finished() && !two.is_finished());
        hold.release(1);
        tokio::select! { r = one => r.unwrap(), r = two => r.unwrap() }
        hold.open();
        hold.pass().await;
    }
}
