//! Drafts in the forms that attention, experts and nodes will have: what flows have to say.
//!
//! Each is built as a way of lowering would build it, and goes through the passes behind `tile`. It verifies and gives
//! the numbers of a dense reference under every schedule of the executor; without any one of its flows, lags or
//! completions the verifier rejects it.

mod harness;
mod nodes;
mod packed;
mod ring;
mod routing;
mod signals;

use super::*;
use mk_prove::valid::Violation;

#[test]
fn what_is_too_large_is_no_error_of_the_compiler() {
    let limit = || Violation::Limit { what: "words".into(), limit: 7 };
    let wrong = Violation::Capacity { place: "p".into(), message: "m".into() };
    let failure = |violations| valid::Failure { plan: "p".into(), at: None, violations };
    let not_verified = |violations| LowerError::from(NotProved::Verify(failure(violations)));
    let error = not_verified(vec![limit()]);
    assert!(
        matches!(&error, LowerError::TooLarge { what, .. } if what.contains("words: more than 7"))
    );
    assert!(error.to_string().contains("help: use smaller sizes"));
    assert!(matches!(not_verified(vec![limit(), wrong]), LowerError::Verify(_)));
}
