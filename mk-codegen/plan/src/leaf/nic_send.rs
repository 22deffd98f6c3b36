//! Messages to other nodes.

use super::Record;
use crate::{
    contract::{Allowed, Arity, Contract, EdgeSpec, Elements, OneType, OperandSpec},
    names::{
        Agent::{Issuer, Receiver, Sender},
        Mode, Operand, Point, Proxy,
    },
};

/// Sends `src` to `dst` on another rank through the network.
pub struct NicSend;

impl Record for NicSend {
    fn name(&self) -> &'static str {
        "nic_send"
    }

    fn contract(&self) -> Contract {
        let end = |operand, mode| OperandSpec::new(operand, mode, Sender, Proxy::Host, Arity::One);
        Contract {
            agents: vec![Issuer, Sender, Receiver],
            operands: vec![
                end(Operand::Src, Mode::Read),
                end(Operand::Dst, Mode::Write),
                OperandSpec::tab(Issuer),
            ],
            edges: vec![
                EdgeSpec::flow("fifo", Issuer, Sender),
                EdgeSpec::flow("immediate", Sender, Receiver),
            ],
            smem_bytes: 0,
        }
    }

    fn allowed(&self, _: bool) -> Allowed {
        Allowed {
            operands: vec![
                (Operand::Src, &[Point::Start]),
                (Operand::Dst, &[Point::End]),
                (Operand::Tab, &[Point::Start]),
            ],
            waits: vec![(Issuer, Point::Start)],
            posts: vec![(Sender, Point::End), (Receiver, Point::End)],
            inner: false,
        }
    }

    fn types(&self) -> Vec<OneType> {
        vec![OneType::new(&[Operand::Src, Operand::Dst], Elements::Any)]
    }

    fn copies(&self) -> bool {
        true
    }

    fn sends(&self) -> bool {
        true
    }
}
