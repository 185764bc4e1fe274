//! Sets the search path for the driver's libraries, and compiles the kernels for the processor if tests need them.

/// The folders into which NVIDIA's container toolkit puts the driver's libraries. Set as RPATH, not RUNPATH, because
/// RPATH is also used for libraries that the driver loads by name.
const DRIVER: &str = "/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64";

fn main() {
    println!("cargo:rustc-link-arg-bins=-Wl,--disable-new-dtags,-rpath,{DRIVER}");
    println!("cargo:rerun-if-changed=kernels");
    #[cfg(feature = "emulator")]
    emulator();
}

/// Builds the emulator for tests of the prover, and a driver around it for tests of the program.
#[cfg(feature = "emulator")]
fn emulator() {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        // No part of the C++ library is used.
        .cpp_link_stdlib(None)
        .std("c++17")
        .opt_level(2)
        .flag("-fno-exceptions")
        .flag("-fno-rtti")
        .flag("-Wno-unknown-pragmas")
        .pic(true)
        .warnings_into_errors(true);
    let driver =
        std::path::PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default()).join("libdriver.so");
    let mut link = build.get_compiler().to_command();
    link.args(["-shared", "kernels/driver.cpp", "-pthread", "-o"])
        .arg(&driver);
    let linked = link.status();
    assert!(linked.is_ok_and(|status| status.success()), "{link:?} failed");
    println!("cargo:rustc-env=MUSTER_EMULATED_DRIVER={}", driver.display());
    build.file("kernels/emulator.cpp").compile("muster_emulator");
}
