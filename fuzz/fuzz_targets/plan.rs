//! Any text as a plan: what reads prints and reads back; what is well formed is verified, within the verifier's limits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mk_codegen::{plan::Plan, valid};

fuzz_target!(|text: &str| {
    let Ok(plan) = text.parse::<Plan>() else { return };
    let printed = plan.to_string();
    assert_eq!(printed.parse::<Plan>().as_ref(), Ok(&plan), "{printed}");
    if plan.check_structure().is_ok() {
        let _ = valid::verify(&plan);
    }
});
