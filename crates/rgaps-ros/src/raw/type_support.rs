//! The type support of rgaps_msgs, from rosidl's library: the loader finds it like any library of a sourced workspace.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::LazyLock;

use libloading::Library;

use crate::{Descriptor, Error};

const LIBRARY: &str = "librgaps_msgs__rosidl_typesupport_c.so";
const PREFIX: &str = "rosidl_typesupport_c__get_message_type_support_handle__";

/// Opened once and never closed: its objects are static.
static FOUND: LazyLock<Result<Library, String>> = LazyLock::new(|| {
    // SAFETY: its initialisers are those of every message package, which rcl runs likewise.
    unsafe { Library::new(LIBRARY) }.map_err(|error| error.to_string())
});

/// A `rosidl_message_type_support_t` with static lifetime.
pub(crate) fn type_support<M: Descriptor>() -> Result<NonNull<c_void>, Error> {
    let missing = |reason: String| Error::TypeSupport { message: M::TYPE_NAME, reason };
    let library = FOUND.as_ref().map_err(|reason| missing(reason.clone()))?;
    let name = format!("{PREFIX}{}", M::TYPE_NAME.replace('/', "__"));
    // SAFETY: the function that rosidl makes for a message of this name; it takes nothing and returns a pointer.
    let function = unsafe { library.get::<unsafe extern "C" fn() -> *const c_void>(name.as_bytes()) };
    let function = function.map_err(|error| missing(error.to_string()))?;
    // SAFETY: it has no preconditions.
    let handle = unsafe { function() };
    NonNull::new(handle.cast_mut()).ok_or_else(|| missing(format!("{name} returned none")))
}
