//! Errors as exceptions of `mk._errors`.

use mk::{
    Diagnostics,
    function::{ArgumentError, FunctionError},
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
    fn name(self) -> &'static str {
        match self {
            Class::Error => "Error",
            Class::Pipeline => "PipelineError",
            Class::Argument => "ArgumentError",
            Class::Unsupported => "UnsupportedError",
            Class::Compile => "CompileError",
            Class::Device => "DeviceError",
            Class::Rendezvous => "RendezvousError",
            Class::Fault => "FaultError",
        }
    }

    /// An exception of this class; if it cannot be made, the error of making it.
    pub fn error(self, py: Python<'_>, text: impl Into<String>) -> PyErr {
        match self.instance(py, text.into()) {
            Ok(value) => PyErr::from_value(value),
            Err(error) => error,
        }
    }

    fn instance(self, py: Python<'_>, text: String) -> PyResult<Bound<'_, PyAny>> {
        py.import("mk._errors")?.getattr(self.name())?.call1((text,))
    }
}

/// Mistakes in the text of a pipeline.
pub fn pipeline(py: Python<'_>, mistakes: &Diagnostics) -> PyErr {
    let build = || {
        let value = Class::Pipeline.instance(py, mistakes.to_string())?;
        let list: Vec<_> = mistakes
            .iter()
            .map(|d| (d.line, d.column, d.message.clone(), d.help.clone()))
            .collect();
        value.setattr("diagnostics", list)?;
        Ok(PyErr::from_value(value))
    };
    build().unwrap_or_else(|error| error)
}

/// Sizes or tensors that do not fit the pipeline.
pub fn argument(py: Python<'_>, error: &ArgumentError) -> PyErr {
    let text = match error {
        // In the command line's syntax, which `in_python` translates.
        ArgumentError::Bind(errors) => errors
            .iter()
            .map(|e| format!("{e:#}\n  help: {}", e.option_help()))
            .collect::<Vec<_>>()
            .join("\n"),
        error => error.to_string(),
    };
    Class::Argument.error(py, in_python(&text))
}

/// Anything between a pipeline and a launch.
pub fn function(py: Python<'_>, error: FunctionError) -> PyErr {
    match error {
        FunctionError::Argument(e) => argument(py, &e),
        FunctionError::Lower(mk::passes::LowerError::Unsupported { .. }) => {
            Class::Unsupported.error(py, error.to_string())
        }
        FunctionError::Lower(
            mk::passes::LowerError::Setting(_)
            | mk::passes::LowerError::OutOfRange { .. }
            | mk::passes::LowerError::TooLarge { .. },
        ) => Class::Argument.error(py, error.to_string()),
        FunctionError::Runtime(e) => runtime(py, &e),
        FunctionError::Sim(e @ SimError::TooLarge { .. }) => {
            Class::Argument.error(py, e.to_string())
        }
        other => Class::Error.error(py, other.to_string()),
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
    let fault = match error {
        RuntimeError::Fault(fault) => Some(&**fault),
        RuntimeError::Poisoned { cause } => match &**cause {
            RuntimeError::Fault(fault) => Some(&**fault),
            _ => None,
        },
        _ => None,
    };
    match (class, fault) {
        (Class::Fault, fault) => fault_error(py, error.to_string(), fault).unwrap_or_else(|e| e),
        _ if matches!(error, RuntimeError::DriverMissing) => class.error(py, NO_DRIVER),
        _ => class.error(py, error.to_string()),
    }
}

/// The message without a driver: names what works in Python all the same.
const NO_DRIVER: &str = "no CUDA driver: libcuda.so.1 was not found\n  help: install the NVIDIA driver (version 580 or newer); without a GPU, \
                         mk.World.reference() computes on CPU tensors, and mk.plan(..).simulate(..) runs a plan on the CPU executor";

fn class(error: &RuntimeError) -> Class {
    match error {
        RuntimeError::NvrtcMissing { .. }
        | RuntimeError::NvrtcUnusable { .. }
        | RuntimeError::Nvrtc { .. }
        | RuntimeError::Compile { .. }
        | RuntimeError::Spill { .. }
        | RuntimeError::Serialised { .. }
        | RuntimeError::ToolMissing { .. }
        | RuntimeError::ToolFailed { .. } => Class::Compile,
        RuntimeError::DriverMissing
        | RuntimeError::DriverTooOld { .. }
        | RuntimeError::Cuda { .. }
        | RuntimeError::NoSuchDevice { .. }
        | RuntimeError::NoPeerAccess { .. }
        | RuntimeError::SameDevice { .. }
        | RuntimeError::SmBudget { .. }
        | RuntimeError::System { .. }
        | RuntimeError::LaunchBlocking
        | RuntimeError::WrongArch { .. }
        | RuntimeError::EngineOnSharedGpu { .. }
        | RuntimeError::TwoCaptures { .. }
        | RuntimeError::NotCoResident { .. } => Class::Device,
        RuntimeError::Count { .. }
        | RuntimeError::Tensor { .. }
        | RuntimeError::MixedCapture { .. }
        | RuntimeError::Shape { .. } => Class::Argument,
        RuntimeError::Environment { .. }
        | RuntimeError::Variable { .. }
        | RuntimeError::SeveralHosts { .. }
        | RuntimeError::Rendezvous { .. }
        | RuntimeError::PeerGone { .. }
        | RuntimeError::PeerSilent { .. }
        | RuntimeError::Interrupted { .. }
        | RuntimeError::PeerFailed { .. }
        | RuntimeError::OutOfStep { .. }
        | RuntimeError::Crossed { .. }
        | RuntimeError::Disagree { .. } => Class::Rendezvous,
        RuntimeError::Fault(_) | RuntimeError::Poisoned { .. } | RuntimeError::Aborted => {
            Class::Fault
        }
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
        out.push_str(before);
        out.push('`');
        out.push_str(&keyword(&flag[..end]).unwrap_or_else(|| flag[..end].to_string()));
        out.push('`');
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
