//! Leaves without operands.

use super::Rules;
use crate::valid::touched::Touched;
use mk_plan::{
    Family,
    leaf::{Enter, Signal},
};

macro_rules! idle {
    ($($leaf:ty),*) => {$(
        impl Rules for $leaf {
            fn misfit(&self, _: &Family, _: &[Touched<'_>]) -> Result<(), String> {
                Ok(())
            }
        }
    )*};
}

idle!(Signal, Enter);
