//! Kinds of failures.

/// What a failure is about: `"kind"` in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The command line cannot be read, or its options exclude each other.
    CommandLine,
    /// The text of a pipeline or plan.
    Pipeline,
    /// Numbers for dimensions.
    Sizes,
    /// Settings.
    Settings,
    /// A pipeline or plan that mk has no way to carry out.
    Unsupported,
    /// More than mk takes on.
    TooLarge,
    /// A plan that the verifier refuses.
    Refused,
    /// Something that this machine lacks.
    Machine,
    /// NVRTC, and kernels that it compiles badly.
    Compile,
    /// A run that came to no end.
    Run,
    /// A run with wrong results.
    Wrong,
    /// A file, or stdout.
    File,
    /// A mistake in mk.
    Internal,
}

impl Kind {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::CommandLine => "command_line",
            Kind::Pipeline => "pipeline",
            Kind::Sizes => "sizes",
            Kind::Settings => "settings",
            Kind::Unsupported => "unsupported",
            Kind::TooLarge => "too_large",
            Kind::Refused => "refused",
            Kind::Machine => "machine",
            Kind::Compile => "compile",
            Kind::Run => "run",
            Kind::Wrong => "wrong",
            Kind::File => "file",
            Kind::Internal => "internal",
        }
    }
}
