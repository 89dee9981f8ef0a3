//! Sets the shared library's soname to its ABI version, so that a program built against another ABI does not start with it. Keeps the library
//! loaded after dlclose, since a node's thread or the deleter of a DLPack tensor would return into unmapped code.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librgaps.so.2");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
