//! Leaves without arithmetic of their own: of those that signal, and of sends, whose data the network carries.

use super::{Compute, Regions, Values, Write};
use crate::context::Context;
use mk_plan::leaf::{Enter, NicSend, Signal};

macro_rules! idle {
    ($($leaf:ty),*) => {$(
        impl Compute for $leaf {
            fn values(&self, _: &Write<'_>, _: &mut Context, _: Regions) -> Values {
                Ok(Vec::new())
            }
        }
    )*};
}

idle!(Signal, Enter, NicSend);
