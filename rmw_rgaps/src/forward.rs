//! The exported functions: exactly those that the distro's rmw headers declare for an RMW, one line of `for_each_function` each, of exactly
//! their type. What is not named in the second list of `use` goes to the inner RMW as it is.

use std::ffi::c_char;

use crate::sys::for_each_function;
// Shadowed, name by name, by what the layer does itself.
use crate::inner::calls::*;

/// What rcl compares with RMW_IMPLEMENTATION, before anything else.
// SAFETY: no arguments.
unsafe fn rmw_get_implementation_identifier() -> *const c_char {
    c"rmw_rgaps".as_ptr()
}

/// The function that says whose library this is, to know it again.
pub(crate) fn own_identifier() -> unsafe extern "C" fn() -> *const c_char {
    exported::rmw_get_implementation_identifier
}

macro_rules! export {
    ($($required:literal fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {
        mod exported {
            use crate::ffi;
            use crate::sys::*;

            $(
                /// What rmw's headers say of it.
                // SAFETY: what they ask of their callers.
                #[unsafe(no_mangle)]
                pub unsafe extern "C" fn $name($($arg: $type),*) -> $result {
                    // SAFETY: the caller keeps to what rmw asks.
                    ffi::guard(stringify!($name), || unsafe { super::$name($($arg),*) })
                }
            )*

            // Of exactly the type that the C compiler has compared with the headers.
            $(const _: unsafe extern "C" fn($($type),*) -> $result = $name;)*
        }
    };
}
for_each_function!(export);
