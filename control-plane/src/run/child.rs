//! Child processes that end with this one.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Gid, Pid, Signal, Uid, geteuid, kill_process};
use tokio::process::{Child, Command};

/// The user that Postgres runs as where we are root and user namespaces are forbidden: nobody.
const NOBODY: u32 = 65534;
/// In a namespace of its own a child is `nobody`, and root outside. Postgres wants a user that has a name.
#[cfg(target_os = "linux")]
const MAPPED: &str = "65534 0 1";
/// How long a child may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// Who the child is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// The same user as this process.
    Same,
    /// A user of its own in a user namespace; outside of it, and in the file system, the same as this process.
    /// Programs that refuse to run as root run like this.
    Namespaced,
    /// The user `nobody`.
    Nobody,
}

impl Identity {
    /// The ways to run a program that refuses root, in the order in which to try them.
    pub fn not_root() -> &'static [Self] {
        if geteuid().is_root() { &[Self::Namespaced, Self::Nobody] } else { &[Self::Same] }
    }
}

/// Starts `command` so that it is sent `on_our_death` when this process dies, however it dies.
///
/// Linux sends that signal when the *thread* ends: call it from the main thread or a worker of the runtime, never from a
/// thread of its blocking pool.
///
/// # Errors
/// When the program cannot be started as that user.
#[expect(unsafe_code, reason = "pre_exec; the closure makes system calls and nothing else")]
pub fn spawn(mut command: Command, identity: Identity, on_our_death: Signal) -> io::Result<Child> {
    command.stdin(Stdio::null()).kill_on_drop(true);
    // Its own process group: a Ctrl-C at the terminal is ours to pass on, in order.
    command.as_std_mut().process_group(0);
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `become_user` and the prctl are plain system
    // calls, the files are opened by short constant paths, nothing allocates or takes a lock.
    unsafe {
        command.pre_exec(move || {
            become_user(identity)?;
            // After the change of user, which would clear it.
            #[cfg(target_os = "linux")]
            rustix::process::set_parent_process_death_signal(Some(on_our_death))?;
            Ok(())
        });
    }
    command.spawn()
}

/// Asks `child` to end by `signal`, then waits; kills it when it does not.
pub async fn stop(child: &mut Child, signal: Signal) {
    let Some(pid) = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)) else { return };
    let _ = kill_process(pid, signal);
    if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// How `child` ended, once it has.
pub async fn ended(child: &mut Child) -> String {
    match child.wait().await {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "unshare; a fresh child shares nothing that a user namespace would take away")]
fn become_user(identity: Identity) -> io::Result<()> {
    match identity {
        Identity::Same => Ok(()),
        Identity::Namespaced => {
            // SAFETY: NEWUSER does not touch the file table or memory.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWUSER)? };
            std::fs::write("/proc/self/uid_map", MAPPED)?;
            std::fs::write("/proc/self/setgroups", "deny")?;
            std::fs::write("/proc/self/gid_map", MAPPED)
        }
        Identity::Nobody => {
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_gid(Gid::from_raw(NOBODY))?;
            Ok(rustix::thread::set_thread_uid(Uid::from_raw(NOBODY))?)
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn become_user(identity: Identity) -> io::Result<()> {
    match identity {
        Identity::Same => Ok(()),
        Identity::Namespaced | Identity::Nobody => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Gives `directory` to the user that `identity` means.
///
/// # Errors
/// When we may not.
pub fn give(directory: &std::path::Path, identity: Identity) -> io::Result<()> {
    match identity {
        Identity::Same | Identity::Namespaced => Ok(()),
        Identity::Nobody => std::os::unix::fs::chown(directory, Some(NOBODY), Some(NOBODY)),
    }
}
