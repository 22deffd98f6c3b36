//! Leaves without numbers.

use super::{Links, Meaning, Write};
use crate::equivalence::{
    algebra::Algebra,
    context::{Context, Misfit},
    linker::Linker,
    unroll::{TaskRun, Touch},
};
use mk_plan::{
    Tabulate,
    leaf::{Enter, Signal},
};
macro_rules! idle {
    ($($leaf:ty),*) => {$(
        impl Links for $leaf {
            fn link(
                &self,
                _: &mut Linker<'_, '_>,
                _: u32,
                _: &TaskRun,
                _: &[Touch],
            ) -> Result<(), String> {
                Ok(())
            }
        }

        impl<A: Algebra> Meaning<A> for $leaf {
            fn stored(
                &self,
                _: &Write<'_>,
                _: &mut Context<A::Elem>,
                _: &mut A,
            ) -> Result<Vec<A::Elem>, Misfit> {
                Ok(Vec::new())
            }
        }
    )*};
}

// The integers of a table are evaluated one by one (`tabulate.rs`).
idle!(Signal, Enter, Tabulate);
