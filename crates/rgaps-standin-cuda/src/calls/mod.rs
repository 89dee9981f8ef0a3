//! The exported functions of the driver, a file for each kind of object.

/// Declares exported functions: each is counted by its name, made to fail if that was asked for, and keeps its panics (`guard`).
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As cuda.h says: pointers are null, or valid for what is read and written there.
        #[allow(non_snake_case, reason = "the driver's names")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $crate::abi::Code {
            $crate::guard::guard(stringify!($name), || $body)
        }
    )*
        /// The functions of this file.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

pub mod capture;
pub mod context;
pub mod device;
pub mod event;
pub mod host;
pub mod memory;
pub mod ordered;
pub mod stream;

/// Whether a function of this name is exported.
pub(crate) fn is_known(name: &str) -> bool {
    let files = [
        capture::NAMES,
        context::NAMES,
        device::NAMES,
        event::NAMES,
        host::NAMES,
        memory::NAMES,
        ordered::NAMES,
        stream::NAMES,
    ];
    files.iter().any(|names| names.contains(&name))
}
