//! What `mk::pipeline!` and `#[mk::pipelined]` accept, and each mistake with the message that it gives.
//!
//! To add a mistake: put a file in `tests/ui` (on a struct: `tests/ui/struct`), run with `TRYBUILD=overwrite`, and review the
//! `.stderr` file.

#[test]
fn ui() {
    let cases = trybuild::TestCases::new();
    cases.pass("tests/ui/pass/*.rs");
    cases.compile_fail("tests/ui/*.rs");
    cases.compile_fail("tests/ui/struct/*.rs");
}
