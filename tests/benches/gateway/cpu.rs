//! CPU time of a process.

use std::time::{Duration, Instant};

/// Of all threads alive, user and system, from `/proc/<pid>/task/*/schedstat`; its unit is nanoseconds.
pub fn used(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let on_cpu = |stat: String| stat.split_whitespace().next().and_then(|ns| ns.parse::<u64>().ok());
    let times = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("schedstat")).ok().and_then(on_cpu));
    Duration::from_nanos(times.sum())
}

/// Waits until none of them does more than tick, so that each measurement pays for all it caused and for nothing else.
pub async fn quiet(pids: &[u32]) {
    const LOOK: Duration = Duration::from_millis(40);
    const TICKING: Duration = Duration::from_millis(3);
    let give_up = Instant::now() + Duration::from_secs(3);
    loop {
        let before: Vec<Duration> = pids.iter().map(|pid| used(*pid)).collect();
        tokio::time::sleep(LOOK).await;
        let busy = pids.iter().zip(before).any(|(pid, before)| used(*pid).saturating_sub(before) > TICKING);
        if !busy || Instant::now() > give_up {
            return;
        }
    }
}
