//! The exported functions: exactly those that the distro's rmw headers declare for an RMW, one line of `for_each_function` each, with exactly
//! their types. Those not named in the second list of `use` are forwarded to the inner RMW.

use std::ffi::c_char;

use crate::sys::for_each_function;
// Shadowed, name by name, by the layer's own implementations.
use crate::inner::calls::*;

use crate::event::{rmw_event_set_callback, rmw_subscription_event_init, rmw_take_event};
use crate::publisher::{
    rmw_borrow_loaned_message, rmw_create_publisher, rmw_destroy_publisher, rmw_get_gid_for_publisher, rmw_publish,
    rmw_publish_loaned_message, rmw_publish_serialized_message, rmw_publisher_assert_liveliness,
    rmw_publisher_count_matched_subscriptions, rmw_publisher_event_init, rmw_publisher_get_actual_qos,
    rmw_publisher_get_network_flow_endpoints, rmw_publisher_wait_for_all_acked,
    rmw_return_loaned_message_from_publisher,
};
use crate::subscription::{
    rmw_create_subscription, rmw_destroy_subscription, rmw_subscription_count_matched_publishers,
    rmw_subscription_get_actual_qos, rmw_subscription_get_content_filter, rmw_subscription_get_network_flow_endpoints,
    rmw_subscription_set_content_filter, rmw_subscription_set_on_new_message_callback,
};
use crate::take::{
    rmw_return_loaned_message_from_subscription, rmw_take, rmw_take_loaned_message, rmw_take_loaned_message_with_info,
    rmw_take_sequence, rmw_take_serialized_message, rmw_take_serialized_message_with_info, rmw_take_with_info,
};
#[cfg(rmw_dynamic)]
use crate::take::{rmw_take_dynamic_message, rmw_take_dynamic_message_with_info};
use crate::wait::rmw_wait;

/// rcl compares it with RMW_IMPLEMENTATION before any other call.
// SAFETY: no arguments.
unsafe fn rmw_get_implementation_identifier() -> *const c_char {
    c"rmw_rgaps".as_ptr()
}

macro_rules! export {
    ($($required:literal fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        mod exported {
            use crate::ffi;
            use crate::sys::*;

            $(
                /// See rmw's headers.
                // SAFETY: what they ask of their callers.
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                    // SAFETY: the caller keeps to what rmw asks.
                    ffi::guard(stringify!($name), || unsafe { super::$name($($arg),*) })
                }
            )*

            // Each has exactly the type that the C compiler compared with the headers.
            $(const _: unsafe extern "C" fn($($type),*) -> $result = $name;)*
        }
    };
}
for_each_function!(export);
