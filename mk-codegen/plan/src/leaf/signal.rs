//! Tasks without data.

use super::Record;
use crate::{
    contract::{Allowed, Contract, OneType},
    names::{Agent::Lead, Point},
};

/// Only waits and posts.
pub struct Signal;

/// Announces this launch to the peers: posts, with the launch hash beside each word.
pub struct Enter;

impl Record for Signal {
    fn name(&self) -> &'static str {
        "signal"
    }

    fn contract(&self) -> Contract {
        Contract::of_one(Lead, vec![])
    }

    fn allowed(&self, _: bool) -> Allowed {
        Allowed {
            operands: vec![],
            waits: vec![(Lead, Point::Start)],
            posts: vec![(Lead, Point::Start), (Lead, Point::End)],
            inner: false,
        }
    }

    fn types(&self) -> Vec<OneType> {
        vec![]
    }
}

impl Record for Enter {
    fn name(&self) -> &'static str {
        "enter"
    }

    fn contract(&self) -> Contract {
        Contract::of_one(Lead, vec![])
    }

    fn allowed(&self, _: bool) -> Allowed {
        let posts = vec![(Lead, Point::Start)];
        Allowed { operands: vec![], waits: vec![], posts, inner: false }
    }

    fn types(&self) -> Vec<OneType> {
        vec![]
    }

    fn enters(&self) -> bool {
        true
    }
}
