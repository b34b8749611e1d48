//! The callbacks Envoy makes, handed to the VM's one state.
//!
//! proxy-wasm's dispatcher is not used: it panics on a context or token it does not know, and holds each context as a
//! `Box<dyn>`. Here an unknown context is passed over, and only the callbacks that are needed are exported: each costs,
//! even one that does nothing. ABI: proxy-wasm 0.2.1.
#![expect(unsafe_code, reason = "exports of the proxy-wasm ABI")]

use std::cell::RefCell;

use crate::vm::{Action, Vm};

thread_local! {
    static VM: RefCell<Vm> = RefCell::new(Vm::default());
}

/// Runs a callback on the VM's state. The host never calls back into a VM from inside a host call (it queues), so the
/// borrow succeeds; were it ever not to, the callback is passed over instead of trapping the VM.
fn with_vm<T>(otherwise: T, callback: impl FnOnce(&mut Vm) -> T) -> T {
    VM.with(|vm| match vm.try_borrow_mut() {
        Ok(mut vm) => callback(&mut vm),
        Err(_) => otherwise,
    })
}

unsafe extern "C" {
    fn __wasm_call_ctors();
}

#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    // SAFETY: the host calls this once, before anything else.
    unsafe { __wasm_call_ctors() };
}

#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Memory for what the host writes; `host::take` owns it afterwards.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    Box::into_raw(Box::<[u8]>::new_uninit_slice(size)).cast()
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(context: u32, root: u32) {
    with_vm((), |vm| vm.create_context(context, root));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_vm_start(_context: u32, _size: usize) -> u32 {
    1
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(context: u32, size: usize) -> u32 {
    u32::from(with_vm(false, |vm| vm.configure(context, size)))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(context: u32) {
    with_vm((), |vm| vm.tick(context));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(context: u32, _count: usize, end: u32) -> Action {
    with_vm(Action::Pause, |vm| vm.request_headers(context, end != 0))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_body(context: u32, size: usize, end: u32) -> Action {
    with_vm(Action::Pause, |vm| vm.request_body(context, size, end != 0))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_trailers(context: u32, _count: usize) -> Action {
    with_vm(Action::Pause, |vm| vm.request_trailers(context))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(context: u32, _count: usize, end: u32) -> Action {
    with_vm(Action::Continue, |vm| vm.response_headers(context, end != 0))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_body(context: u32, size: usize, end: u32) -> Action {
    with_vm(Action::Continue, |vm| vm.response_body(context, size, end != 0))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_trailers(context: u32, _count: usize) -> Action {
    with_vm(Action::Continue, |vm| vm.response_trailers(context))
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_done(context: u32) -> u32 {
    with_vm((), |vm| vm.done(context));
    1
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_log(context: u32) {
    with_vm((), |vm| vm.log(context));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_delete(context: u32) {
    with_vm((), |vm| vm.delete(context));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_receive(context: u32, token: u32, size: usize) {
    with_vm((), |vm| vm.grpc_message(context, token, size));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_close(_context: u32, token: u32, status: u32) {
    with_vm((), |vm| vm.grpc_closed(token, status));
}
