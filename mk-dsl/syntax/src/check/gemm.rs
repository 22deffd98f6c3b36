//! `gemm(w)`: `[M, K] x [K, N] -> [M, N]`, and with a weight `[K, G, N]`, `[M, G, N]`; the way back, `gemm(dy, w.t)`,
//! contracts `[M, G, N]` with `[K, G, N]` over `G` and `N`.

use super::checker::{Call, Checker, Id, Shape, Ty, Value, Wanted};
use super::dims::Resolved;
use crate::ast::Operand;
use crate::messages;
use crate::program::{DType, Factors, Op, Placement};
use crate::span::Span;

/// The placement of the GEMM over one axis, from those of its operands.
fn product(left: Placement, right: Placement) -> Option<Placement> {
    use Placement::{Partial, Replicate, Shard};
    match (left, right) {
        (Replicate, Replicate) => Some(Replicate),
        // Each rank contracts over a part of K.
        (Shard(1), Shard(0)) => Some(Partial),
        // Each rank has some columns: the weight's dimensions after K are those of the product.
        (Replicate, Shard(dim @ 1..)) => Some(Shard(dim)),
        // Each rank has some rows.
        (Shard(0), Replicate) => Some(Shard(0)),
        // The GEMM is linear in operand B.
        (Replicate, Partial) => Some(Partial),
        _ => None,
    }
}

/// What to do about a pair that `product` refuses. The weight is stored as `name`, its rows and
/// columns in dimensions `rows` and `columns` of that; `input` is what messages call the input.
fn advice(
    (left, input): (Placement, &str),
    right: Placement,
    name: &str,
    rows: usize,
    columns: usize,
) -> String {
    let gathered = product(Placement::Replicate, right).is_some();
    match left {
        Placement::Replicate => {
            format!("declare `{name}` `@ shard({columns})`, `@ replicate` or `@ partial`")
        }
        Placement::Shard(0) if gathered => {
            format!("write `gather ->` before `gemm`, or declare `{name}` `@ replicate`")
        }
        Placement::Shard(0) => format!("declare `{name}` `@ replicate`"),
        Placement::Shard(_) if gathered => {
            format!("write `gather ->` before `gemm`, or declare `{name}` `@ shard({rows})`")
        }
        Placement::Shard(_) => format!("declare `{name}` `@ shard({rows})`"),
        Placement::Zigzag(_) => format!("declare {input} `@ shard(0)`"),
        Placement::Partial => messages::reduce_before("gemm"),
    }
}

impl Ty {
    /// The type of a matrix read the other way round.
    fn transposed(mut self) -> Ty {
        self.dims.reverse();
        self.placement = transposed(self.placement);
        self
    }
}

fn transposed(placement: Vec<Placement>) -> Vec<Placement> {
    let turned = placement.into_iter().map(|p| match p {
        Placement::Shard(0) => Placement::Shard(1),
        Placement::Shard(1) => Placement::Shard(0),
        p => p,
    });
    turned.collect()
}

impl<'a> Checker<'a, '_> {
    /// The value of an operand of `gemm`, as the GEMM reads it; `wanted` is of that, too.
    pub(super) fn factor(&mut self, operand: Operand<'a>, wanted: Wanted) -> Option<Value> {
        let Some(at) = operand.transposed else {
            return self.stored(operand.word, wanted);
        };
        let Wanted { dtype, shape, placement } = wanted;
        // Dimensions that are written are those of what is stored; fresh ones have no order yet.
        let wanted = Wanted { dtype, shape, placement: transposed(placement) };
        let mut value = self.stored(operand.word, wanted)?;
        if value.ty.dims.len() != 2 {
            let shape = self.show_dims(&value.ty.dims);
            return self.sink.refuse(at, messages::transpose_rank(operand.word.text, &shape));
        }
        value.ty = value.ty.transposed();
        value.label = format!("`{}.t`", operand.word.text);
        value.is_transposed = true;
        Some(value)
    }

    pub(super) fn gemm(&mut self, mut call: Call<'_, 'a>) -> Option<Value> {
        let operand = call.args.operand(self.sink);
        call.args.finish(self.sink);
        let (operand, op) = (operand?, call.op.span);
        let a = self.input_of(call.input, [operand])?;
        if let (Some(turned), 3) = (operand.transposed, a.ty.dims.len()) {
            return self.gemm_over_columns(&a, operand, turned, op);
        }
        let dtype = if a.ty.dtype == DType::F32 { DType::Bf16 } else { a.ty.dtype };
        let shape = self.shape_before(operand, call.rest);
        let placement = self.infer_weight(&a, shape.n_dims(), call.rest);
        let b = self.factor(operand, Wanted { dtype, shape, placement });

        let n_before = self.sink.len();
        let a_dims = <[_; 2]>::try_from(a.ty.dims.as_slice()).ok();
        if a_dims.is_none() {
            let shape = self.show_dims(&a.ty.dims);
            let has_pair = match a.ty.dims.as_slice() {
                [_, pair, _] => matches!(self.dims.resolve(*pair), Resolved::Lit(2)),
                _ => false,
            };
            self.sink.push(op, messages::gemm_left_rank(&a.label, &shape, has_pair));
        }
        if a.ty.dtype == DType::F32 {
            self.sink.push(op, messages::product_dtype("gemm", &a.label, a.ty.dtype));
        }
        let (b, at) = (b?, operand.word.span);
        let narrow = a.ty.dtype.is_narrow() && b.ty.dtype.is_narrow();
        if !b.ty.dtype.multiplies() {
            self.sink.push(at, messages::product_dtype("gemm", &b.label, b.ty.dtype));
        } else if a.ty.dtype.multiplies() && a.ty.dtype != b.ty.dtype && !narrow {
            let text = messages::dtype_mismatch("gemm", a.ty.dtype, &b.label, b.ty.dtype);
            self.sink.push(at, text);
        }
        if a.ty.dtype.is_narrow() && a.is_transposed {
            self.sink.push(op, messages::narrow_operand(&a.label, a.ty.dtype, "[M, K]", false));
        }
        if b.ty.dtype.is_narrow() && !b.is_transposed {
            self.sink.push(at, messages::narrow_operand(&b.label, b.ty.dtype, "[N, K]", true));
        }
        if let Some((_, Factors::Blocks)) = a.scales {
            self.sink.push(op, messages::factors_of_operand("A", &a.label, "scaled(1, 128)"));
        }
        if let Some((_, Factors::Steps)) = b.scales {
            self.sink.push(at, messages::factors_of_operand("B", &b.label, "scaled(128, 128)"));
        }
        let ([k, columns @ ..], 2 | 3) = (b.ty.dims.as_slice(), b.ty.dims.len()) else {
            let shape = self.show_dims(&b.ty.dims);
            return self.sink.refuse(at, messages::gemm_right_rank(&b.label, &shape));
        };
        let [m, a_k] = a_dims?;
        // Where the weight's rows and columns are in what is stored.
        let last = columns.len();
        let (row, column) = if b.is_transposed { (last, 0) } else { (0, last) };
        self.fit([a_k, *k], at, |left, right| {
            messages::gemm_contraction(left, right, operand.word.text, row)
        });
        let mut placement = Vec::new();
        for (axis, (&left, &right)) in a.ty.placement.iter().zip(&b.ty.placement).enumerate() {
            match product(left, right) {
                Some(p) => placement.push(p),
                None => {
                    let shown = (self.mesh.show(left, axis), self.mesh.show(right, axis));
                    let help = advice((left, &a.label), right, operand.word.text, row, column);
                    let turned = b.is_transposed.then_some(b.label.as_str());
                    let text = messages::gemm_placement(&shown.0, &shown.1, turned, help);
                    self.sink.push(at, text);
                }
            }
        }
        self.sink.fine_since(n_before)?;
        let dims = [m].into_iter().chain(columns.iter().copied()).collect();
        let dtype = if narrow { DType::Bf16 } else { a.ty.dtype };
        let ty = Ty { dtype, dims, placement };
        let op = Op::Gemm { a_transposed: a.is_transposed, b_transposed: b.is_transposed };
        let (left, right) = (self.dequantized(&a), self.dequantized(&b));
        Some(self.push(op, vec![left, right], ty, a.gathered))
    }

    /// An operand with its factors, as it is stored.
    pub(super) fn dequantized(&mut self, x: &Value) -> Id {
        let Some((scales, of)) = x.scales else { return x.id };
        let stored = if x.is_transposed { x.ty.clone().transposed() } else { x.ty.clone() };
        let ty = Ty { dtype: DType::F32, ..stored };
        self.push(Op::Dequantize(of), vec![x.id, scales], ty, x.gathered.clone()).id
    }

    /// `[M, G, N]` by the transpose of `[K, G, N]`: `[M, K]`, summed over all columns. `turned` is where the `.t`
    /// stands.
    fn gemm_over_columns(
        &mut self,
        a: &Value,
        operand: Operand<'a>,
        turned: Span,
        op: Span,
    ) -> Option<Value> {
        use Placement::{Partial, Replicate, Shard};
        let placement = a.ty.placement.iter().map(|p| match p {
            Shard(0) | Partial => Replicate,
            p => *p,
        });
        let wanted =
            Wanted { dtype: a.ty.dtype, shape: Shape::Fresh(3), placement: placement.collect() };
        let b = self.stored(operand.word, wanted)?;
        let at = operand.word.span;
        let n_before = self.sink.len();
        let (&[m, g, n], &[k, b_g, b_n]) = (a.ty.dims.as_slice(), b.ty.dims.as_slice()) else {
            let shape = self.show_dims(&b.ty.dims);
            self.sink
                .push(turned, messages::gemm_over_columns(&a.label, operand.word.text, &shape));
            return None;
        };
        for (dim, left, right) in [(1, g, b_g), (2, n, b_n)] {
            self.fit([left, right], at, |left, right| {
                messages::gemm_contraction(left, right, operand.word.text, dim)
            });
        }
        for value in [a, &b] {
            if value.ty.dtype == DType::F32 || value.ty.dtype.is_storage() {
                let text = messages::product_dtype("gemm(x, w.t)", &value.label, value.ty.dtype);
                self.sink.push(op, text);
            }
        }
        if self.sink.len() == n_before
            && a.ty.dtype != b.ty.dtype
            && a.ty.dtype != DType::F32
            && b.ty.dtype != DType::F32
        {
            let text = messages::dtype_mismatch("gemm", a.ty.dtype, &b.label, b.ty.dtype);
            self.sink.push(at, text);
        }
        let mut placement = Vec::new();
        for (axis, (&left, &right)) in a.ty.placement.iter().zip(&b.ty.placement).enumerate() {
            let found = match (left, right) {
                (Replicate, Replicate) => Replicate,
                (Shard(left @ 1..), Shard(right)) if left == right => Partial,
                (Replicate, Shard(0)) => Shard(1),
                (Shard(0), Replicate) => Shard(0),
                (Replicate, Partial) => Partial,
                _ => {
                    let shown = (self.mesh.show(left, axis), self.mesh.show(right, axis));
                    let help = match left {
                        Shard(dim @ 1..) => {
                            format!("declare `{}` `@ shard({dim})`", operand.word.text)
                        }
                        Partial => messages::reduce_before("gemm"),
                        _ => format!("declare `{}` `@ replicate`", operand.word.text),
                    };
                    self.sink.push(at, messages::gemm_placement(&shown.0, &shown.1, None, help));
                    continue;
                }
            };
            placement.push(found);
        }
        self.sink.fine_since(n_before)?;
        let ty = Ty { dtype: a.ty.dtype, dims: vec![m, k], placement };
        let op = Op::Gemm { a_transposed: a.is_transposed, b_transposed: true };
        Some(self.push(op, vec![a.id, b.id], ty, a.gathered.clone()))
    }
}
