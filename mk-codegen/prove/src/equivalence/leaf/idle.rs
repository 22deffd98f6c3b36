//! Leaves without numbers.

use super::{Linked, Links, Meaning, Stored, Task, Write};
use crate::equivalence::{algebra::Algebra, context::Context, linker::Linker};
use mk_plan::{
    Tabulate,
    leaf::{Enter, Signal},
};
macro_rules! idle {
    ($($leaf:ty),*) => {$(
        impl Links for $leaf {
            fn link(&self, _: &mut Linker<'_, '_>, _: &Task<'_>) -> Linked {
                Ok(())
            }
        }

        impl<A: Algebra> Meaning<A> for $leaf {
            fn stored(&self, _: &Write<'_>, _: &mut Context<A::Elem>, _: &mut A) -> Stored<A> {
                Ok(Vec::new())
            }
        }
    )*};
}

// The integers of a table are evaluated one by one (`tabulate.rs`).
idle!(Signal, Enter, Tabulate);
