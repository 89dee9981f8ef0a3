//! The name that rcl gives a topic. The core needs it before the ROS half exists; rclrs reports it only afterwards, and r2r never.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;

use crate::Error;

// rcl's own names.
#[allow(non_camel_case_types)]
type rcl_ret_t = i32;

/// rcutils/allocator.h: functions and their argument, to be passed on.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
struct rcl_allocator_t {
    allocate: Option<unsafe extern "C" fn(usize, *mut c_void) -> *mut c_void>,
    deallocate: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    reallocate: Option<unsafe extern "C" fn(*mut c_void, usize, *mut c_void) -> *mut c_void>,
    zero_allocate: Option<unsafe extern "C" fn(usize, usize, *mut c_void) -> *mut c_void>,
    state: *mut c_void,
}

/// rcl/arguments.h.
#[repr(C)]
#[allow(non_camel_case_types)]
struct rcl_arguments_t {
    content: *mut c_void,
}

// rcl/arguments.h and rcl/remap.h, which rclrs does not export and r2r binds only in part.
unsafe extern "C" {
    fn rcutils_get_default_allocator() -> rcl_allocator_t;
    fn rcl_get_zero_initialized_arguments() -> rcl_arguments_t;
    fn rcl_parse_arguments(
        count: c_int,
        texts: *const *const c_char,
        allocator: rcl_allocator_t,
        arguments: *mut rcl_arguments_t,
    ) -> rcl_ret_t;
    fn rcl_arguments_fini(arguments: *mut rcl_arguments_t) -> rcl_ret_t;
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

/// This process's arguments, parsed by rcl; freed on drop.
struct Arguments(rcl_arguments_t);

impl Arguments {
    fn of_process(allocator: rcl_allocator_t) -> Result<Self, Error> {
        // Arguments of a process contain no zero bytes.
        let texts: Vec<CString> = std::env::args().filter_map(|text| CString::new(text).ok()).collect();
        let pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let count = i32::try_from(pointers.len()).unwrap_or(0);
        // SAFETY: no preconditions.
        let mut arguments = Self(unsafe { rcl_get_zero_initialized_arguments() });
        // SAFETY: as many texts as said, read during the call; a zeroed output.
        let status = unsafe { rcl_parse_arguments(count, pointers.as_ptr(), allocator, &mut arguments.0) };
        if status == 0 { Ok(arguments) } else { Err(failed("rcl_parse_arguments", status)) }
    }
}

impl Drop for Arguments {
    fn drop(&mut self) {
        // SAFETY: zeroed or parsed, and finished once. A failure frees nothing more.
        let _ = unsafe { rcl_arguments_fini(&mut self.0) };
    }
}

/// A topic's fully qualified name on a node, after the process's remapping rules.
pub(crate) fn resolved(topic: &str, node: &str, namespace: &str) -> Result<String, Error> {
    remapped(&expanded(topic, node, namespace), node, namespace)
}

/// Makes a name fully qualified: relative names get the namespace, and ~ is the node.
fn expanded(topic: &str, node: &str, namespace: &str) -> String {
    let below = namespace.trim_end_matches('/');
    match topic.strip_prefix('~') {
        _ if topic.starts_with('/') => topic.to_owned(),
        Some(rest) => format!("{below}/{node}{rest}"),
        None => format!("{below}/{topic}"),
    }
}

fn remapped(name: &str, node: &str, namespace: &str) -> Result<String, Error> {
    let text = |text: &str| CString::new(text).map_err(|error| Error::ros(format!("the name {text:?}"), error));
    let (topic, node, namespace) = (text(name)?, text(node)?, text(namespace)?);
    // SAFETY: no preconditions.
    let allocator = unsafe { rcutils_get_default_allocator() };
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
        return Ok(name.to_owned()); // No rule matches.
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

#[cfg(test)]
mod tests {
    use super::expanded;

    #[test]
    fn names_become_fully_qualified_as_in_ros() {
        assert_eq!(expanded("image", "node", "/"), "/image");
        assert_eq!(expanded("a/image", "node", "/robot"), "/robot/a/image");
        assert_eq!(expanded("/image", "node", "/robot"), "/image");
        assert_eq!(expanded("~/image", "node", "/robot"), "/robot/node/image");
        assert_eq!(expanded("~", "node", "/"), "/node");
    }
}
