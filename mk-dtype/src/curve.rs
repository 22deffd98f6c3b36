//! The nonlinear functions of one element, in one table. A reader asks for a column, and names none of them, but where
//! it computes them: docs/add-an-op.md lists these places.

use serde::{Deserialize, Serialize};

/// A nonlinear function of one element, which has a slope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Curve {
    /// `x * Phi(x)`, by `erf`.
    Gelu,
    /// `x * Phi(x)`, with the approximation of `Phi` by tanh.
    GeluTanh,
    /// `x * sigmoid(x)`.
    Silu,
    /// `max(x, 0)`; its slope at 0 is 0.
    Relu,
}

/// A row of the table.
struct Row {
    name: &'static str,
    grad: &'static str,
    cuda: &'static str,
}

impl Curve {
    /// All of them.
    pub const ALL: [Curve; 4] = [Curve::Gelu, Curve::GeluTanh, Curve::Silu, Curve::Relu];

    const fn row(self) -> Row {
        const fn row(name: &'static str, grad: &'static str, cuda: &'static str) -> Row {
            Row { name, grad, cuda }
        }
        match self {
            Curve::Gelu => row("gelu", "gelu_grad", "gelu_erf"),
            Curve::GeluTanh => row("gelu_tanh", "gelu_tanh_grad", "gelu_tanh"),
            Curve::Silu => row("silu", "silu_grad", "silu"),
            Curve::Relu => row("relu", "relu_grad", "relu"),
        }
    }

    /// The operation that applies it, in pipelines and plans.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The operation that multiplies by its slope, there and in `templates/tile/curves.cuh`.
    pub const fn grad(self) -> &'static str {
        self.row().grad
    }

    /// Its name in `templates/tile/curves.cuh`.
    pub const fn cuda(self) -> &'static str {
        self.row().cuda
    }
}
