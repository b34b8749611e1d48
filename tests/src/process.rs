//! Child processes: they log to a file, die with the tests and can be killed in every way.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{oneshot, watch};

/// A running program. Dropped, it is killed; dropped by a failing test, the end of its log is printed.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    log: PathBuf,
    status: watch::Receiver<Option<ExitStatus>>,
}

struct Job {
    command: Command,
    child: oneshot::Sender<std::io::Result<Child>>,
}

/// Children get a signal when the *thread* that started them ends, so one thread starts all and never ends.
static SPAWNER: LazyLock<Mutex<mpsc::Sender<Job>>> = LazyLock::new(|| {
    let (jobs, queue) = mpsc::channel::<Job>();
    std::thread::spawn(move || {
        for mut job in queue {
            // The receiver waits for it.
            let _ = job.child.send(job.command.spawn());
        }
    });
    Mutex::new(jobs)
});

impl Process {
    /// Starts `program` with its output in `<folder>/<name>.log`. It dies with this process, however that ends.
    pub async fn start(name: &str, folder: &Path, program: &Path, args: &[&str], env: &[(&str, &str)]) -> Self {
        let log = folder.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log).expect("a log file");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program).args(args);
        command.envs(env.iter().copied()).current_dir(folder);
        command.stdin(Stdio::null()).stdout(out.try_clone().expect("a second handle")).stderr(out);
        let (child, started) = oneshot::channel();
        SPAWNER.lock().expect("no holder panics").send(Job { command, child }).expect("the spawner never ends");
        let child = started.await.expect("the spawner answers").unwrap_or_else(|e| panic!("cannot start {name}: {e}"));
        Self { name: name.to_owned(), pid: pid_of(&child), log, status: reap(child) }
    }

    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    pub fn is_running(&self) -> bool {
        self.status.borrow().is_none()
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill_9(&self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    /// SIGTERM, and waits for the end.
    pub async fn terminate(&self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    pub fn signal(&self, signal: Signal) {
        if self.is_running() {
            // It may have ended between the two lines.
            let _ = kill_process(self.pid, signal);
        }
    }

    pub async fn ended(&self) -> ExitStatus {
        let mut status = self.status.clone();
        let ended = status.wait_for(Option::is_some).await.expect("the reaper reports");
        ended.expect("waited for it")
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The last lines of the log, under a heading.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        let tail = all.split_at(all.len().saturating_sub(lines)).1.join("\n");
        format!("---- {} ({}) ----\n{tail}\n", self.name, self.log.display())
    }

    /// Resident memory, bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).and_then(|v| v.split_whitespace().next());
        kib.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log_tail(60));
        }
        self.signal(Signal::KILL);
        let deadline = Instant::now() + Duration::from_secs(2);
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn pid_of(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id is a positive i32")
}

fn reap(mut child: Child) -> watch::Receiver<Option<ExitStatus>> {
    let (report, status) = watch::channel(None);
    std::thread::spawn(move || {
        if let Ok(status) = child.wait() {
            // Nobody may be left to hear it.
            let _ = report.send(Some(status));
        }
    });
    status
}
