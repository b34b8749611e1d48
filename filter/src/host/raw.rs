//! The imports, as the ABI declares them. Zero is success, everything else a [`super::Status`].

host_calls! { "wasi_snapshot_preview1" {
    pub fn clock_time_get(clock: u32, precision: u64, time: *mut u64) -> u32;
    pub fn random_get(data: *mut u8, size: usize) -> u32;
}}

host_calls! { "env" {
    pub fn proxy_log(level: u32, data: *const u8, size: usize) -> u32;
    pub fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    pub fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        max: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    pub fn proxy_set_buffer_bytes(buffer: u32, start: usize, size: usize, data: *const u8, len: usize) -> u32;
    pub fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    pub fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize) -> u32;
    pub fn proxy_replace_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> u32;
    pub fn proxy_get_property(path: *const u8, path_size: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    pub fn proxy_set_property(path: *const u8, path_size: usize, data: *const u8, size: usize) -> u32;
    pub fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        cas: *mut u32,
    ) -> u32;
    pub fn proxy_set_shared_data(key: *const u8, key_size: usize, data: *const u8, size: usize, cas: u32) -> u32;
    pub fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
    pub fn proxy_continue_stream(half: u32) -> u32;
    pub fn proxy_set_effective_context(context: u32) -> u32;
    pub fn proxy_grpc_stream(
        service: *const u8,
        service_size: usize,
        name: *const u8,
        name_size: usize,
        method: *const u8,
        method_size: usize,
        metadata: *const u8,
        metadata_size: usize,
        token: *mut u32,
    ) -> u32;
    pub fn proxy_grpc_send(token: u32, data: *const u8, size: usize, end: u32) -> u32;
    pub fn proxy_grpc_close(token: u32) -> u32;
    pub fn proxy_define_metric(kind: u32, name: *const u8, size: usize, id: *mut u32) -> u32;
    pub fn proxy_increment_metric(id: u32, offset: i64) -> u32;
    pub fn proxy_record_metric(id: u32, value: u64) -> u32;
}}
