//! Names the shared library by the version of its ABI, so that a program built against another one is not started with it, and keeps it
//! loaded after dlclose: a node's thread, and whoever holds a DLPack tensor, would return into memory that is gone.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librgaps.so.2");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
