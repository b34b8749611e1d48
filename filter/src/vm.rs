//! The state of one VM: its roots, its streams, and what they share.

mod shared;

use std::collections::HashMap;

use sluicegate_core::plugin::{PluginConfig, Role};

use crate::adapter::Adapter;
use crate::gate::Gate;
use crate::host::{self, Buffer, LogLevel};
use crate::root::{Root, TICK_MS};

pub use shared::Shared;

/// What a stream callback answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    Continue = 0,
    Pause = 1,
}

#[derive(Debug)]
pub struct Vm {
    roots: HashMap<u32, Plugin>,
    streams: HashMap<u32, Stream>,
    root: Root,
    shared: Shared,
}

/// A root context: one filter entry of Envoy's configuration.
#[derive(Debug)]
enum Plugin {
    Unconfigured,
    Configured(PluginConfig),
}

#[derive(Debug)]
enum Stream {
    Gate(Gate),
    Adapter(Adapter),
}

impl Default for Vm {
    fn default() -> Self {
        let shared = Shared::new(host::random());
        Self { roots: HashMap::new(), streams: HashMap::new(), root: Root::new(shared.vm), shared }
    }
}

impl Vm {
    pub fn create_context(&mut self, context: u32, root: u32) {
        if root == 0 {
            self.roots.insert(context, Plugin::Unconfigured);
            return;
        }
        let stream = match self.roots.get(&root) {
            Some(Plugin::Configured(PluginConfig { role: Role::Adapter, .. })) => Stream::Adapter(Adapter::default()),
            // A stream whose root is unknown is a gate's: it lets nothing through without a policy.
            _ => Stream::Gate(Gate::default()),
        };
        self.streams.insert(context, stream);
    }

    /// Runs in a throw-away VM first: so nothing here touches shared data or opens a stream.
    pub fn configure(&mut self, context: u32, size: usize) -> bool {
        let bytes = host::buffer(Buffer::PluginConfiguration, 0, size).unwrap_or_default();
        let config = match PluginConfig::parse(&bytes) {
            Ok(config) => config,
            Err(reason) => {
                host::log(LogLevel::Error, &format!("sluicegate: plugin configuration: {reason}"));
                return false;
            }
        };
        if config.role == Role::Gate {
            self.root.announce(context, config.version);
            // A refused tick leaves the filter without state: it would answer 503 for ever, so it is refused here.
            if host::set_tick_period(TICK_MS).is_err() {
                return false;
            }
        }
        self.roots.insert(context, Plugin::Configured(config));
        true
    }

    pub fn tick(&mut self, context: u32) {
        #[cfg(feature = "count")]
        crate::count::tally::publish("streams");
        if let Some(Plugin::Configured(config)) = self.roots.get(&context) {
            self.root.tick(context, config, &mut self.shared);
        }
        self.unpark(context);
        #[cfg(feature = "count")]
        crate::count::tally::publish("ticks");
    }

    /// Resumes what waits for a policy: at most 32 in one callback, because more overflow the VM's stack, and each once.
    fn unpark(&mut self, root: u32) {
        const AT_ONCE: usize = 32;
        // Resumes run nested. The first one through makes Envoy load the adapter into this VM; a second one that gets
        // there meanwhile finds it half loaded, and is answered 503 or crashes Envoy.
        let at_once = if self.has_adapter() { AT_ONCE } else { 1 };
        let now = host::now().0;
        for _ in 0..at_once {
            let due = self.shared.parked.front().is_some_and(|(_, by)| self.shared.policy.is_some() || *by <= now);
            let Some((context, _)) = due.then(|| self.shared.parked.pop_front()).flatten() else { return };
            let Some(Stream::Gate(gate)) = self.streams.get_mut(&context) else { continue };
            // A client that has left took its context with it; then the old one is still effective.
            if host::set_effective_context(context).is_err() {
                continue;
            }
            if gate.unpark(context, &mut self.shared) {
                let _ = host::continue_request();
            }
            let _ = host::set_effective_context(root);
        }
        if !self.shared.parked.is_empty() {
            self.shared.flow.hurry();
        }
    }

    fn has_adapter(&self) -> bool {
        let is_adapter = |plugin: &Plugin| matches!(plugin, Plugin::Configured(c) if c.role == Role::Adapter);
        self.roots.values().any(is_adapter)
    }

    pub fn request_headers(&mut self, context: u32, end: bool) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Gate(gate)) => gate.request_headers(context, end, &mut self.shared),
            Some(Stream::Adapter(adapter)) => adapter.request_headers(&mut self.shared),
            None => Action::Pause,
        }
    }

    pub fn request_body(&mut self, context: u32, size: usize, end: bool) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Gate(gate)) => gate.request_body(context, size, end, &mut self.shared),
            Some(Stream::Adapter(adapter)) => adapter.request_body(size, end, &mut self.shared),
            None => Action::Pause,
        }
    }

    pub fn request_trailers(&mut self, context: u32) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Gate(gate)) => gate.request_trailers(context, &mut self.shared),
            Some(Stream::Adapter(adapter)) => adapter.request_trailers(&mut self.shared),
            None => Action::Pause,
        }
    }

    pub fn response_headers(&mut self, context: u32, end: bool) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Gate(gate)) => gate.response_headers(context, &mut self.shared),
            Some(Stream::Adapter(adapter)) => adapter.response_headers(end, &mut self.shared),
            None => Action::Continue,
        }
    }

    pub fn response_body(&mut self, context: u32, size: usize, end: bool) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Adapter(adapter)) => adapter.response_body(size, end, &mut self.shared),
            Some(Stream::Gate(_)) | None => Action::Continue,
        }
    }

    pub fn response_trailers(&mut self, context: u32) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Adapter(adapter)) => adapter.response_trailers(&mut self.shared),
            Some(Stream::Gate(_)) | None => Action::Continue,
        }
    }

    pub fn done(&mut self, context: u32) {
        match self.streams.get(&context) {
            Some(Stream::Adapter(adapter)) => adapter.done(&mut self.shared),
            Some(Stream::Gate(_)) => {}
            None if self.roots.contains_key(&context) => self.root.leave(context, &mut self.shared),
            None => {}
        }
    }

    pub fn log(&mut self, context: u32) {
        if let Some(Stream::Gate(gate)) = self.streams.get_mut(&context) {
            gate.log(context, &mut self.shared);
        }
    }

    /// Upstream filters get no `on_log`: this is where an adapter's state goes.
    pub fn delete(&mut self, context: u32) {
        self.streams.remove(&context);
        self.roots.remove(&context);
        self.shared.exchanges.remove(&context);
    }

    pub fn grpc_message(&mut self, token: u32, size: usize) {
        self.root.message(token, size, &mut self.shared);
    }

    pub fn grpc_closed(&mut self, token: u32, status: u32) {
        self.root.closed(token, status, &mut self.shared);
    }
}
