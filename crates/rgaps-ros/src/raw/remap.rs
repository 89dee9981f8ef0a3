//! The name that rcl gives a topic: r2r does not say it, and the core's topic has it.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use r2r_rcl::{rcl_allocator_t, rcl_arguments_fini, rcl_arguments_t, rcl_ret_t};

use crate::Error;

// rcl/remap.h, which r2r binds nothing of.
unsafe extern "C" {
    fn rcl_remap_topic_name(
        local_arguments: *const rcl_arguments_t,
        global_arguments: *const rcl_arguments_t,
        topic_name: *const c_char,
        node_name: *const c_char,
        node_namespace: *const c_char,
        allocator: rcl_allocator_t,
        output_name: *mut *mut c_char,
    ) -> rcl_ret_t;
}

/// This process's arguments, as rcl reads them; freed on drop.
struct Arguments(rcl_arguments_t);

impl Arguments {
    fn of_process(allocator: rcl_allocator_t) -> Result<Self, Error> {
        // The system's have no zero inside.
        let texts: Vec<CString> = std::env::args().filter_map(|text| CString::new(text).ok()).collect();
        let pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let count = i32::try_from(pointers.len()).unwrap_or(0);
        // SAFETY: no preconditions.
        let mut arguments = Self(unsafe { r2r_rcl::rcl_get_zero_initialized_arguments() });
        // SAFETY: as many texts as said, read during the call; a zeroed output.
        let status = unsafe { r2r_rcl::rcl_parse_arguments(count, pointers.as_ptr(), allocator, &mut arguments.0) };
        if status == 0 { Ok(arguments) } else { Err(failed("rcl_parse_arguments", status)) }
    }
}

impl Drop for Arguments {
    fn drop(&mut self) {
        // SAFETY: zeroed or parsed, and finished once. A failure frees nothing more.
        let _ = unsafe { rcl_arguments_fini(&mut self.0) };
    }
}

/// What the process's remapping rules make of a fully qualified name, on a node.
pub(crate) fn remapped(name: &str, node: &str, namespace: &str) -> Result<String, Error> {
    let text = |text: &str| CString::new(text).map_err(|error| Error::ros(format!("the name {text:?}"), error));
    let (topic, node, namespace) = (text(name)?, text(node)?, text(namespace)?);
    // SAFETY: no preconditions.
    let allocator = unsafe { r2r_rcl::rcutils_get_default_allocator() };
    let arguments = Arguments::of_process(allocator)?;
    let mut output: *mut c_char = ptr::null_mut();
    // SAFETY: parsed arguments, texts that end with a zero, and a null output.
    let status = unsafe {
        rcl_remap_topic_name(
            ptr::null(),
            &arguments.0,
            topic.as_ptr(),
            node.as_ptr(),
            namespace.as_ptr(),
            allocator,
            &mut output,
        )
    };
    if status != 0 {
        return Err(failed("rcl_remap_topic_name", status));
    }
    if output.is_null() {
        return Ok(name.to_owned()); // No rule is about it.
    }
    // SAFETY: a text that ends with a zero, ours until it is freed below.
    let found = unsafe { CStr::from_ptr(output) }.to_string_lossy().into_owned();
    if let Some(deallocate) = allocator.deallocate {
        // SAFETY: made by this allocator, and freed once.
        unsafe { deallocate(output.cast(), allocator.state) };
    }
    Ok(found)
}

fn failed(function: &str, status: rcl_ret_t) -> Error {
    Error::ros(function, format!("status {status}"))
}
