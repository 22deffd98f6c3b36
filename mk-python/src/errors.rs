//! Errors as exceptions of `mk._errors`.

use mk::{
    Diagnostics,
    function::{ArgumentError, FunctionError},
    passes::LowerError,
    runtime::{Error as RuntimeError, Fault},
    sim::SimError,
};
use pyo3::prelude::*;

/// Classes of `mk._errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Error,
    Pipeline,
    Argument,
    Unsupported,
    Compile,
    Device,
    Rendezvous,
    Fault,
}

impl Class {
    /// An exception of this class; if it cannot be made, the error of making it.
    pub fn error(self, py: Python<'_>, text: impl Into<String>) -> PyErr {
        match self.instance(py, text.into()) {
            Ok(value) => PyErr::from_value(value),
            Err(error) => error,
        }
    }

    fn instance(self, py: Python<'_>, text: String) -> PyResult<Bound<'_, PyAny>> {
        let name = format!("{self:?}Error");
        let name = if self == Class::Error { "Error" } else { &name };
        py.import("mk._errors")?.getattr(name)?.call1((text,))
    }
}

/// Mistakes in the text of a pipeline.
pub fn pipeline(py: Python<'_>, mistakes: &Diagnostics) -> PyErr {
    let build = || {
        let value = Class::Pipeline.instance(py, mistakes.to_string())?;
        let list = mistakes.iter().map(|d| (d.line, d.column, d.message.clone(), d.help.clone()));
        value.setattr("diagnostics", list.collect::<Vec<_>>())?;
        Ok(PyErr::from_value(value))
    };
    build().unwrap_or_else(|error| error)
}

/// Sizes or tensors that do not fit the pipeline.
pub fn argument(py: Python<'_>, error: &ArgumentError) -> PyErr {
    let text = match error {
        // In the command line's syntax, which `in_python` translates.
        ArgumentError::Bind(errors) => {
            let said = errors.iter().map(|e| format!("{e:#}\n  help: {}", e.option_help()));
            said.collect::<Vec<_>>().join("\n")
        }
        error => error.to_string(),
    };
    Class::Argument.error(py, in_python(&text))
}

/// Anything between a pipeline and a launch.
pub fn function(py: Python<'_>, error: FunctionError) -> PyErr {
    use LowerError::{OutOfRange, Setting, TooLarge};
    match error {
        FunctionError::Argument(e) => argument(py, &e),
        FunctionError::Runtime(e) => runtime(py, &e),
        error => {
            let class = match error {
                FunctionError::Lower(LowerError::Unsupported { .. }) => Class::Unsupported,
                FunctionError::Lower(Setting(_) | OutOfRange { .. } | TooLarge { .. })
                | FunctionError::Sim(SimError::TooLarge { .. }) => Class::Argument,
                _ => Class::Error,
            };
            class.error(py, error.to_string())
        }
    }
}

/// Whether a kernel gave up.
pub fn is_fault(error: &FunctionError) -> bool {
    matches!(error, FunctionError::Runtime(e) if class(e) == Class::Fault)
}

/// A failure of the runtime.
pub fn runtime(py: Python<'_>, error: &RuntimeError) -> PyErr {
    if let RuntimeError::Interrupted { .. } = error
        && let Some(raised) = crate::interrupt::cause()
    {
        return raised;
    }
    let class = class(error);
    let cause = if let RuntimeError::Poisoned { cause } = error { cause } else { error };
    let fault = if let RuntimeError::Fault(fault) = cause { Some(&**fault) } else { None };
    match error {
        _ if class == Class::Fault => {
            fault_error(py, error.to_string(), fault).unwrap_or_else(|e| e)
        }
        RuntimeError::DriverMissing => class.error(py, NO_DRIVER),
        _ => class.error(py, error.to_string()),
    }
}

/// The message without a driver: names what works in Python all the same.
const NO_DRIVER: &str = "no CUDA driver: libcuda.so.1 was not found\n  help: install the NVIDIA driver (version 580 or \
    newer); without a GPU, mk.World.reference() computes on CPU tensors, and mk.plan(..).simulate(..) runs a plan on \
    the CPU executor";

fn class(error: &RuntimeError) -> Class {
    use RuntimeError::*;
    match error {
        NvrtcMissing { .. } | NvrtcUnusable { .. } | Nvrtc { .. } | Compile { .. } => {
            Class::Compile
        }
        Spill { .. } | Serialised { .. } | ToolMissing { .. } | ToolFailed { .. } => Class::Compile,
        DriverMissing | DriverTooOld { .. } | Cuda { .. } | NoSuchDevice { .. } => Class::Device,
        NoPeerAccess { .. } | SameDevice { .. } | SmBudget { .. } | System { .. } => Class::Device,
        LaunchBlocking | WrongArch { .. } | EngineOnSharedGpu { .. } => Class::Device,
        TwoCaptures { .. } | NotCoResident { .. } => Class::Device,
        Count { .. } | Tensor { .. } | MixedCapture { .. } | Shape { .. } => Class::Argument,
        Environment { .. } | Variable { .. } | SeveralHosts { .. } => Class::Rendezvous,
        Rendezvous { .. } | PeerGone { .. } | PeerSilent { .. } => Class::Rendezvous,
        Interrupted { .. } | PeerFailed { .. } | OutOfStep { .. } => Class::Rendezvous,
        Crossed { .. } | Disagree { .. } => Class::Rendezvous,
        Fault(_) | Poisoned { .. } | Aborted => Class::Fault,
        _ => Class::Error,
    }
}

fn fault_error(py: Python<'_>, text: String, fault: Option<&Fault>) -> PyResult<PyErr> {
    let value = Class::Fault.instance(py, text)?;
    value.setattr("rank", fault.map(|f| f.rank))?;
    value.setattr("peer", fault.and_then(|f| f.peer))?;
    value.setattr("edge", fault.map(|f| f.edge))?;
    value.setattr("role", fault.and_then(|f| f.role.clone()))?;
    Ok(PyErr::from_value(value))
}

/// Replaces flags of the command line in help lines by Python's keyword arguments.
fn in_python(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("`--") {
        let (before, flag) = (&rest[..at], &rest[at + 1..]);
        let Some(end) = flag.find('`') else { break };
        let keyword = keyword(&flag[..end]).unwrap_or_else(|| flag[..end].to_string());
        out += &format!("{before}`{keyword}`");
        rest = &flag[end + 1..];
    }
    out + rest
}

/// `--shape a=8x4` as `shapes={"a": (8, 4)}`, `--dim M=8` as `dims={"M": 8}`.
fn keyword(flag: &str) -> Option<String> {
    let (name, value) = flag.split_once(' ')?.1.split_once('=')?;
    if flag.starts_with("--dim ") {
        return Some(format!("dims={{\"{name}\": {value}}}"));
    }
    let extents: Vec<&str> = value.split('x').collect();
    let comma = if extents.len() == 1 { "," } else { "" };
    let shape = extents.join(", ");
    flag.starts_with("--shape ").then(|| format!("shapes={{\"{name}\": ({shape}{comma})}}"))
}
