//! Copies by a copy engine.

use super::Record;
use crate::{
    contract::{Arity, Contract, Elements, OneType, OperandSpec},
    names::{Agent::Engine, Mode, Operand, Proxy},
};

/// Copies `src` to `dst` by a copy engine.
pub struct HostCopy;

impl Record for HostCopy {
    fn name(&self) -> &'static str {
        "host_copy"
    }

    fn contract(&self) -> Contract {
        let end = |operand, mode| OperandSpec::new(operand, mode, Engine, Proxy::Host, Arity::One);
        Contract {
            agents: vec![Engine],
            operands: vec![end(Operand::Src, Mode::Read), end(Operand::Dst, Mode::Write)],
            edges: vec![],
            smem_bytes: 0,
        }
    }

    fn types(&self) -> Vec<OneType> {
        vec![OneType::new(&[Operand::Src, Operand::Dst], Elements::Any)]
    }

    fn copies(&self) -> bool {
        true
    }

    fn is_host_copy(&self) -> bool {
        true
    }
}
