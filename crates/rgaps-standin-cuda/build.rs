//! Linker flags of the shared library: its soname, and that it is never unloaded.

fn main() {
    // After it is loaded by its path, the loader resolves this name to it, even if a driver is installed. cudarc tries this name first.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    // Its worker threads run until the process ends.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
