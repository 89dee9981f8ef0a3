//! Recognizes the types of GPU topics by their type support.

use std::ffi::{CStr, c_char, c_void};

use rgaps::dynamic::Kind;
use rgaps_ros_policy::descriptor::kind_of_name;
pub(crate) use rgaps_ros_policy::descriptor::type_name;

use crate::ffi::refuse;
use crate::rcutils;
use crate::sys::*;

/// The package of the types.
const PACKAGE: &CStr = c"rgaps_msgs";

/// The `data` of a type support with more than one implementation: rosidl_typesupport_{c,cpp}/type_support_map.h.
#[repr(C)]
struct Map {
    size: usize,
    package_name: *const c_char,
    typesupport_identifier: *const *const c_char,
    symbol_name: *const *const c_char,
}

/// The first fields of a message's members, in rosidl_typesupport_introspection_{c,cpp}/message_introspection.h.
#[repr(C)]
struct Members {
    namespace: *const c_char,
    name: *const c_char,
}

/// The kind of message of a GPU topic; None for all other types.
// SAFETY: null, or a type support that rosidl has made.
pub(crate) unsafe fn kind_of(support: *const rosidl_message_type_support_t) -> Option<Kind> {
    // SAFETY: null or a type support, as the caller says.
    let handle = unsafe { support.as_ref() }?;
    // SAFETY: a C string of the type support's.
    let identifier = unsafe { text(handle.typesupport_identifier) }?;
    if identifier == c"rosidl_typesupport_c" || identifier == c"rosidl_typesupport_cpp" {
        // SAFETY: type supports of this identifier have a map.
        return unsafe { kind_by_map(handle.data.cast()) };
    }
    // A package generated with a single type support returns that one's handle.
    let own = [c"rosidl_typesupport_introspection_c", c"rosidl_typesupport_introspection_cpp"];
    let func = handle.func?;
    let found = own.into_iter().find_map(|identifier| {
        // SAFETY: the type support's own function, with itself and a C string.
        let found = unsafe { func(support, identifier.as_ptr()) };
        // SAFETY: null or a type support of that identifier.
        unsafe { found.as_ref() }
    });
    let Some(found) = found else {
        // The function set an error because it has none of these.
        rcutils::reset_error();
        return None;
    };
    // SAFETY: type supports of these identifiers have members.
    unsafe { kind_by_members(found.data.cast()) }
}

// SAFETY: null, or a map of a type support.
unsafe fn kind_by_map(map: *const Map) -> Option<Kind> {
    // SAFETY: as the caller says.
    let map = unsafe { map.as_ref() }?;
    // SAFETY: a C string of the map's.
    let package = unsafe { text(map.package_name) }?;
    if package != PACKAGE || map.size == 0 {
        return None;
    }
    // SAFETY: it has `size` names, and there is one.
    let symbol = unsafe { map.symbol_name.as_ref() }?;
    // SAFETY: a C string of the map's.
    let symbol = unsafe { text(*symbol) }?.to_str().ok()?;
    // As in rosidl_typesupport_fastrtps_c__get_message_type_support_handle__rgaps_msgs__msg__GpuImage.
    let (_, name) = symbol.rsplit_once("__rgaps_msgs__msg__")?;
    kind_of_name(name)
}

// SAFETY: null, or members of a message.
unsafe fn kind_by_members(members: *const Members) -> Option<Kind> {
    // SAFETY: as the caller says.
    let members = unsafe { members.as_ref() }?;
    // SAFETY: a C string of the members'.
    let namespace = unsafe { text(members.namespace) }?;
    if namespace != c"rgaps_msgs__msg" && namespace != c"rgaps_msgs::msg" {
        return None;
    }
    // SAFETY: a C string of the members'.
    kind_of_name(unsafe { text(members.name) }?.to_str().ok()?)
}

/// Whether an entity, made by the RMW with this identifier, can be destroyed on that node. Checked before anything is destroyed.
// SAFETY: null, or a node.
pub(crate) unsafe fn check_node(
    node: *const rmw_node_t,
    identifier: *const c_char,
    topic: &str,
) -> Result<(), rmw_ret_t> {
    // SAFETY: as the caller says.
    let Some(node) = (unsafe { node.as_ref() }) else {
        return Err(refuse(RMW_RET_INVALID_ARGUMENT, format_args!("{topic}: the node is null")));
    };
    if !std::ptr::eq(node.implementation_identifier, identifier) {
        return Err(refuse(RMW_RET_INCORRECT_RMW_IMPLEMENTATION, format_args!("{topic}: the node is another RMW's")));
    }
    Ok(())
}

/// Refuses a call in a forked child.
pub(crate) fn forked(topic: &str) -> rmw_ret_t {
    refuse(RMW_RET_ERROR, format_args!("{topic}: it belongs to the parent process; make a context after fork"))
}

/// A C string that may be null.
// SAFETY: null, or a C string that stays for as long as the result is used.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a CStr> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    Some(unsafe { CStr::from_ptr(text) })
}

/// A C pointer that moves between threads with its owner.
#[derive(Debug)]
pub(crate) struct Raw<T = c_void>(pub(crate) *mut T);

// SAFETY: an address; code that dereferences it says why it may on its thread.
unsafe impl<T> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Raw<T> {}

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn none(
        _: *const rosidl_message_type_support_t,
        _: *const c_char,
    ) -> *const rosidl_message_type_support_t {
        std::ptr::null()
    }

    unsafe extern "C" fn itself(
        own: *const rosidl_message_type_support_t,
        wanted: *const c_char,
    ) -> *const rosidl_message_type_support_t {
        // SAFETY: the test's own type support.
        let identifier = unsafe { (*own).typesupport_identifier };
        // SAFETY: the test's own string.
        let identifier = unsafe { text(identifier) };
        // SAFETY: the layer's own string.
        if identifier == unsafe { text(wanted) } { own } else { std::ptr::null() }
    }

    fn support(identifier: &'static CStr, data: *const c_void) -> rosidl_message_type_support_t {
        // SAFETY: pointers and functions that may be null.
        let mut support: rosidl_message_type_support_t = unsafe { std::mem::zeroed() };
        support.typesupport_identifier = identifier.as_ptr();
        support.data = data;
        support.func = Some(none);
        support
    }

    fn by_map(package: &'static CStr, symbol: &'static CStr) -> Option<Kind> {
        let symbols = [symbol.as_ptr()];
        let map = Map {
            size: 1,
            package_name: package.as_ptr(),
            typesupport_identifier: std::ptr::null(),
            symbol_name: symbols.as_ptr(),
        };
        let support = support(c"rosidl_typesupport_cpp", (&raw const map).cast());
        // SAFETY: made as rosidl does.
        unsafe { kind_of(&raw const support) }
    }

    #[test]
    fn types_are_known_by_package_and_symbol() {
        let symbol = c"rosidl_typesupport_fastrtps_cpp__get_message_type_support_handle__rgaps_msgs__msg__GpuTensor";
        assert_eq!(by_map(PACKAGE, symbol), Some(Kind::Tensor));
        assert_eq!(by_map(c"other_msgs", symbol), None);
        let handle = c"rosidl_typesupport_fastrtps_cpp__get_message_type_support_handle__rgaps_msgs__msg__GpuHandle";
        assert_eq!(by_map(PACKAGE, handle), None);
    }

    #[test]
    fn a_package_with_one_type_support_is_known_by_its_members() {
        for (namespace, known) in [(c"rgaps_msgs__msg", true), (c"rgaps_msgs::msg", true), (c"std_msgs::msg", false)] {
            let members = Members { namespace: namespace.as_ptr(), name: c"GpuImage".as_ptr() };
            let mut support = support(c"rosidl_typesupport_introspection_cpp", (&raw const members).cast());
            support.func = Some(itself);
            // SAFETY: made as rosidl does.
            let kind = unsafe { kind_of(&raw const support) };
            assert_eq!(kind, known.then_some(Kind::Image), "{namespace:?}");
        }
    }

    #[test]
    fn an_unknown_type_support_is_no_gpu_type() {
        let other = support(c"of_somebody", std::ptr::null());
        // SAFETY: made as rosidl does.
        assert_eq!(unsafe { kind_of(&raw const other) }, None);
        // SAFETY: null.
        assert_eq!(unsafe { kind_of(std::ptr::null()) }, None);
    }
}
