//! Descriptors as r2r's messages: rcl reads and writes their bytes directly.

use r2r_rcl::rosidl_message_type_support_t;

use super::type_support;
use crate::descriptor::{GpuImage, GpuPointCloud, GpuTensor};

macro_rules! message {
    ($name:ident) => {
        impl ::r2r::WrappedTypesupport for $name {
            type CStruct = Self;

            fn get_ts() -> &'static rosidl_message_type_support_t {
                match type_support::<Self>() {
                    // SAFETY: static, as rosidl makes it, and not written once it is there.
                    Ok(found) => unsafe { found.cast().as_ref() },
                    // Publishers and subscriptions of this crate have looked it up before, and returned the error.
                    Err(error) => panic!("{error}"),
                }
            }

            fn create_msg() -> *mut Self {
                Box::into_raw(Box::default())
            }

            #[allow(clippy::not_unsafe_ptr_arg_deref)] // Required by r2r's trait.
            fn destroy_msg(message: *mut Self) {
                // SAFETY: r2r passes what `create_msg` made, once.
                drop(unsafe { Box::from_raw(message) });
            }

            fn from_native(message: &Self) -> Self {
                message.clone()
            }

            fn copy_to_native(&self, message: &mut Self) {
                *message = self.clone();
            }
        }
    };
}

message!(GpuImage);
message!(GpuPointCloud);
message!(GpuTensor);
