//! Operands of an epilogue.

use crate::valid::touched::{Touched, made_of};
use mk_plan::{EPILOGUE_OPERANDS, EpilogueOp};

/// Operations of an epilogue have their operands.
pub(super) fn tails(epilogue: &[EpilogueOp], touched: &[Touched<'_>]) -> Result<(), String> {
    let n = epilogue.iter().filter(|op| op.operand().is_some()).count();
    made_of(touched, &EPILOGUE_OPERANDS[..n.min(EPILOGUE_OPERANDS.len())])
}
