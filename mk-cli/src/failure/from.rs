//! Which errors of the libraries are of which kind.

use super::{Failure, Kind};
use mk::{
    check::CheckError, emit::EmitError, function::FunctionError, passes::LowerError, runtime,
    settings::NotASetting, sim::SimError, tune::Unpredicted,
};
use mk_harness::HarnessError;

fn of_lowering(error: &LowerError) -> Kind {
    match error {
        LowerError::Unsupported { .. } | LowerError::OutOfRange { .. } => Kind::Unsupported,
        LowerError::Setting(_) => Kind::Settings,
        LowerError::TooLarge { .. } => Kind::TooLarge,
        _ => Kind::Internal,
    }
}

fn of_runtime(error: &runtime::Error) -> Kind {
    use runtime::Error::*;
    match error {
        DriverMissing | DriverTooOld { .. } | NoSuchDevice { .. } | NoPeerAccess { .. } => {
            Kind::Machine
        }
        Unreachable { .. } | NvrtcMissing { .. } | NvrtcUnusable { .. } => Kind::Machine,
        Compile { .. } | Spill { .. } | Serialised { .. } | BadSource { .. } => Kind::Compile,
        _ => Kind::Run,
    }
}

fn of_emission(error: &EmitError) -> Kind {
    match error {
        EmitError::Refused(_) | EmitError::Point(_) => Kind::Unsupported,
        _ => Kind::Internal,
    }
}

fn of_check(error: &CheckError) -> Kind {
    match error {
        CheckError::NotProved(error) if error.is_too_large() => Kind::TooLarge,
        CheckError::NotProved(_) => Kind::Refused,
        CheckError::NoKernel(_) => Kind::Unsupported,
        CheckError::Emit(error) => of_emission(error),
        _ => Kind::Internal,
    }
}

fn of_executor(error: &SimError) -> Kind {
    match error {
        SimError::TooLarge { .. } => Kind::TooLarge,
        _ => Kind::Run,
    }
}

fn of_function(error: &FunctionError) -> Kind {
    match error {
        FunctionError::Argument(_) | FunctionError::Mismatch { .. } => Kind::Sizes,
        FunctionError::Lower(error) => of_lowering(error),
        FunctionError::Check(error) => of_check(error),
        FunctionError::Sim(error) => of_executor(error),
        FunctionError::Runtime(error) => of_runtime(error),
        _ => Kind::Run,
    }
}

fn of_harness(error: &HarnessError) -> Kind {
    match error {
        HarnessError::TooLarge { .. } => Kind::TooLarge,
        HarnessError::Unsupported { .. } => Kind::Unsupported,
        HarnessError::Mismatch { .. } => Kind::Sizes,
        HarnessError::Sim(error) => of_executor(error),
        HarnessError::Function(error) => of_function(error),
        HarnessError::Runtime(error) => of_runtime(error),
        _ => Kind::Run,
    }
}

fn of_prediction(error: &Unpredicted) -> Kind {
    match error {
        Unpredicted::Lower(error) => of_lowering(error),
        _ => Kind::Unsupported,
    }
}

/// Errors that are said as they are.
macro_rules! said {
    ($($error:ty => $kind:expr),+ $(,)?) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                Failure::new($kind(&error), error)
            }
        })+
    };
}

said! {
    LowerError => of_lowering,
    runtime::Error => of_runtime,
    EmitError => of_emission,
    CheckError => of_check,
    FunctionError => of_function,
    HarnessError => of_harness,
    Unpredicted => of_prediction,
    NotASetting => |_: &NotASetting| Kind::Settings,
}
