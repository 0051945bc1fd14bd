//! Names the shared library's interface, so that a program finds the version that it was built for.

fn main() {
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liboutlast.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}
