//! Names the shared library by the version of its ABI, so that a program built against another one is not started with it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librgaps.so.1");
}
