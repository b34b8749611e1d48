//! The state of one VM: its roots, its streams, and what they share.

mod shared;
mod watch;

use std::collections::HashMap;
use std::rc::Rc;

use sluicegate_core::plugin::{Attached, PluginConfig, Role};

use crate::adapter::Adapter;
use crate::decodings::SLICE_NS;
use crate::gate::Gate;
use crate::host::{self, Buffer, LogLevel};
use crate::root::{Root, TICK_MS};

pub use shared::Shared;
pub use watch::Pauses;

/// Requests that one callback resumes at most: more overflow the VM's stack.
const RESUMED_AT_ONCE: usize = 32;

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
    Configured(PluginConfig, Option<Rc<Attached>>),
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
            Some(Plugin::Configured(config, attached)) => match config.role {
                Role::Gate => Stream::Gate(Gate::new(attached.clone())),
                Role::Adapter => Stream::Adapter(Adapter::new(attached.clone())),
            },
            // A stream whose root is unknown is a gate's: it lets nothing through without a policy.
            Some(Plugin::Unconfigured) | None => Stream::Gate(Gate::new(None)),
        };
        self.streams.insert(context, stream);
    }

    /// Runs in a throw-away VM first: so nothing here touches shared data or opens a stream.
    pub fn configure(&mut self, context: u32, size: usize) -> bool {
        let bytes = host::buffer(Buffer::PluginConfiguration, 0, size).unwrap_or_default();
        let mut config = match PluginConfig::parse(&bytes) {
            Ok(config) => config,
            Err(reason) => {
                host::log(LogLevel::Error, &format!("sluicegate: plugin configuration: {reason}"));
                return false;
            }
        };
        if config.role == Role::Gate {
            self.root.announce(context, config.version);
            self.shared.has_gate = true;
            // A refused tick leaves the filter without state: it would answer 503 for ever, so it is refused here.
            if host::set_tick_period(TICK_MS).is_err() {
                return false;
            }
        }
        let attached = config.attached.take().map(Rc::new);
        self.roots.insert(context, Plugin::Configured(config, attached));
        true
    }

    pub fn tick(&mut self, context: u32) {
        #[cfg(feature = "count")]
        crate::count::tally::publish("streams");
        if let Some(Plugin::Configured(config, _)) = self.roots.get(&context) {
            self.root.tick(context, config, &mut self.shared);
        }
        let left = self.decode(context, self.resumed_at_once());
        self.unpark(context, left);
        self.watch(context);
        #[cfg(feature = "count")]
        crate::count::tally::publish("ticks");
    }

    /// Resumes of one callback run nested: many overflow the VM's stack. The first one through makes Envoy load the adapter
    /// into a fresh VM; a second one that came there meanwhile would find it half loaded, and be answered 503 or crash Envoy.
    fn resumed_at_once(&self) -> usize {
        let is_adapter = |plugin: &Plugin| matches!(plugin, Plugin::Configured(c, _) if c.role == Role::Adapter);
        if self.roots.values().any(is_adapter) { RESUMED_AT_ONCE } else { 1 }
    }

    /// Resumes requests that waited, at most so many, and each once. The others follow on a tick soon.
    fn unpark(&mut self, root: u32, at_once: usize) {
        let now = host::now();
        for _ in 0..at_once {
            let Some(context) = self.shared.waiting.next(now) else { break };
            self.with_gate(root, context, |gate, shared| gate.unpark(context, shared));
        }
        let more = self.shared.waiting.has_due() || self.shared.decodings.first().is_some();
        self.shared.flow.pace(root, more);
    }

    /// Works on compressed bodies for a moment, one after the other, at most on so many. Returns how many are left of them.
    fn decode(&mut self, root: u32, at_once: usize) -> usize {
        let until = host::now().0.saturating_add(SLICE_NS);
        for left in (0..at_once).rev() {
            let Some(context) = self.shared.decodings.first() else { return left + 1 };
            self.with_gate(root, context, |gate, shared| gate.decode_on(context, until, shared));
            if host::now().0 >= until {
                return left;
            }
        }
        0
    }

    /// Does something for a paused request from a root's callback, and resumes it if that says so.
    fn with_gate(&mut self, root: u32, context: u32, act: impl FnOnce(&mut Gate, &mut Shared) -> bool) {
        let Some(Stream::Gate(gate)) = self.streams.get_mut(&context) else { return };
        // A client that has left took its context with it; then the old one is still effective.
        if host::set_effective_context(context).is_err() {
            return;
        }
        if act(gate, &mut self.shared) {
            let _ = host::continue_request();
        }
        let _ = host::set_effective_context(root);
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
        self.shared.waiting.forget(context);
        self.shared.decodings.forget(context);
    }

    pub fn grpc_message(&mut self, root: u32, token: u32, size: usize) {
        self.root.message(token, size, &mut self.shared);
        if self.shared.waiting.has_due() {
            self.unpark(root, self.resumed_at_once());
        }
    }

    pub fn grpc_closed(&mut self, token: u32, status: u32) {
        self.root.closed(token, status, &mut self.shared);
    }
}
