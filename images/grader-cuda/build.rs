//! Says where the driver's libraries lie, and compiles the kernels for this processor where tests want them.

/// Where NVIDIA's container toolkit puts the driver's libraries. As RPATH, not RUNPATH: the driver loads others by name, and those are
/// looked for there as well.
const DRIVER: &str = "/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64";

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,--disable-new-dtags,-rpath,{DRIVER}");
    println!("cargo:rerun-if-changed=kernels");
    #[cfg(feature = "emulator")]
    cc::Build::new()
        .cpp(true)
        // No part of the C++ library is used.
        .cpp_link_stdlib(None)
        .file("kernels/emulator.cpp")
        .std("c++17")
        .opt_level(2)
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .flag("-Wno-unknown-pragmas")
        .warnings_into_errors(true)
        .compile("muster_emulator");
}
