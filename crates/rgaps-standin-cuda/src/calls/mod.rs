//! The exported driver functions, one file for each kind of object.

/// Declares exported functions. Each runs in `guard`, which counts the call, injects faults and catches panics.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// The requirements of cuda.h: pointers are null, or valid for what the function reads and writes.
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
pub mod rdma;
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
        rdma::NAMES,
        stream::NAMES,
    ];
    files.iter().any(|names| names.contains(&name))
}
