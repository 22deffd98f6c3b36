//! Operands of an epilogue.

use crate::valid::touched::{Touched, made_of};
use mk_plan::{EPILOGUE_OPERANDS, EpilogueOp, Operand};

/// Operations of an epilogue have their operands.
pub(super) fn tails(epilogue: &[EpilogueOp], touched: &[Touched<'_>]) -> Result<(), String> {
    let n = epilogue.iter().filter(|op| op.operand().is_some()).count();
    made_of(touched, &EPILOGUE_OPERANDS[..n.min(EPILOGUE_OPERANDS.len())])
}

/// The operation whose operand this is.
pub(super) fn of_epilogue(epilogue: &[EpilogueOp], operand: Operand) -> Option<EpilogueOp> {
    let place = EPILOGUE_OPERANDS.iter().position(|e| *e == operand)?;
    epilogue.iter().filter(|op| op.operand().is_some()).nth(place).copied()
}
