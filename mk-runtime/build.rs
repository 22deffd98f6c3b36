//! With feature `verbs`: `shim/ibverbs.c` as a static `libibverbs.a`, in a folder that the linker searches before the
//! system's. It satisfies the `-libverbs` of crate `ibverbs-sys`, so that no program of ours needs libibverbs to start.

fn main() {
    println!("cargo:rerun-if-changed=shim/ibverbs.c");
    #[cfg(feature = "verbs")]
    {
        cc::Build::new().file("shim/ibverbs.c").cargo_metadata(false).compile("ibverbs");
        let out = std::env::var("OUT_DIR").expect("cargo sets OUT_DIR");
        println!("cargo:rustc-link-search=native={out}");
    }
}
