//! `pub fn name<M: dyn <= 8192>(x: bf16[M, K] @ shard(0)) -> bf16[M, K] { body }`.

use super::Parser;
use crate::ast::{
    DimExpr, Param, PlacementExpr, PlacementKind, Results, RuntimeSymbol, ScalesExpr, Signature,
    Source, Type, Word,
};
use crate::lex::Kind;
use crate::messages::{self, Expected};
use crate::suggest::nearest;

impl<'a> Parser<'a, '_> {
    pub(super) fn source(mut self) -> Option<Source<'a>> {
        let docs = self.docs();
        let is_item = !docs.is_empty() || self.at_keyword("pub") || self.at_keyword("fn");
        let (signature, body) = if is_item || self.at_punct('#') {
            let signature = self.signature()?;
            self.expect(Kind::Punct('{'), Expected::Body)?;
            let body = self.body();
            self.expect(Kind::Punct('}'), Expected::EndOfBody)?;
            (Some(signature), body)
        } else {
            (None, self.body())
        };
        if self.kind() != Kind::End {
            let one_item = signature.is_some();
            self.error(if one_item { Expected::EndOfItem } else { Expected::EndOfChain });
        }
        Some(Source { docs, signature, body })
    }

    /// The lines of a doc comment, without `///`.
    pub(super) fn docs(&mut self) -> Vec<&'a str> {
        let mut lines = Vec::new();
        while let Some(span) = self.eat(Kind::Doc) {
            let line = self.text(span);
            lines.push(line.strip_prefix("///").unwrap_or(line).trim_end());
        }
        lines
    }

    fn signature(&mut self) -> Option<Signature<'a>> {
        if self.at_punct('#') {
            self.error(Expected::NoAttribute);
            return None;
        }
        if self.eat_keyword("pub").is_some() && self.eat(Kind::Punct('(')).is_some() {
            self.recover(&[]);
            self.eat(Kind::Punct(')'));
        }
        if self.eat_keyword("fn").is_none() {
            self.error(Expected::Fn);
            return None;
        }
        let name = self.word(Expected::ItemName)?;
        let runtime = match self.eat(Kind::Punct('<')) {
            Some(_) => self.list('>', Expected::RuntimeSeparator, Self::runtime_symbol),
            None => Vec::new(),
        };
        self.expect(Kind::Punct('('), Expected::Params)?;
        let params = self.list(')', Expected::ParamSeparator, Self::param);
        let results = self.eat(Kind::Arrow).map(|_| self.results());
        let runtime = runtime.into_iter().flatten().collect();
        Some(Signature { name, runtime, params: params.into_iter().flatten().collect(), results })
    }

    /// `M: dyn`, `M: dyn <= 8192`, `T: own <= 8192`.
    fn runtime_symbol(&mut self) -> Option<RuntimeSymbol<'a>> {
        let name = self.word(Expected::SymbolName)?;
        self.expect(Kind::Punct(':'), Expected::Dyn)?;
        let own = self.eat_keyword("own").is_some();
        if !own && self.eat_keyword("dyn").is_none() {
            self.error(Expected::Dyn);
            return None;
        }
        let max = match self.eat(Kind::Le) {
            Some(_) => Some(self.int(Expected::Bound)?),
            None => None,
        };
        Some(RuntimeSymbol { name, own, max })
    }

    /// A parameter whose type cannot be read keeps its name, so that its uses are no mistakes.
    fn param(&mut self) -> Option<Param<'a>> {
        self.docs();
        let name = self.word(Expected::ParamName)?;
        let ty = self.expect(Kind::Punct(':'), Expected::ParamType).and_then(|_| self.ty());
        if ty.is_none() {
            self.recover(&[Kind::Punct(',')]);
        }
        Some(Param { name, ty })
    }

    fn results(&mut self) -> Results<'a> {
        let start = self.nth(0).span;
        let types = if self.eat(Kind::Punct('(')).is_some() {
            self.list(')', Expected::ResultSeparator, Self::ty)
        } else {
            let ty = self.ty();
            if ty.is_none() {
                self.recover(&[Kind::Punct('{')]);
            }
            vec![ty]
        };
        Results { span: start.to(self.last_span()), types }
    }

    fn ty(&mut self) -> Option<Type<'a>> {
        let dtype = self.word(Expected::Type)?;
        let open = self.expect(Kind::Punct('['), Expected::Shape)?;
        let dims = self.list(']', Expected::DimSeparator, Self::dim);
        let dims_span = open.to(self.last_span());
        let n_dims = dims.len();
        let dims: Vec<_> = dims.into_iter().flatten().collect();
        let scales = match self.eat_keyword("scaled") {
            Some(start) => {
                self.expect(Kind::Punct('('), Expected::Scales)?;
                let block = self.list(')', Expected::DimSeparator, Self::dim);
                let block = block.into_iter().collect::<Option<_>>()?;
                Some(ScalesExpr { span: start.to(self.last_span()), block })
            }
            None => None,
        };
        let mut placements = Vec::new();
        while self.eat(Kind::Punct('@')).is_some() {
            placements.push(self.placement()?);
        }
        (dims.len() == n_dims).then_some(Type { dtype, dims_span, dims, scales, placements })
    }

    fn dim(&mut self) -> Option<DimExpr<'a>> {
        match self.kind() {
            Kind::Int => self.int(Expected::Dim).map(DimExpr::Lit),
            _ => {
                let word = self.word(Expected::Dim)?;
                if self.at_punct(':') {
                    return self.sink.refuse(word.span, messages::runtime_in_shape(word.text));
                }
                Some(DimExpr::Sym(word))
            }
        }
    }

    /// `shard(0)`, `shard(0, tp)`, `replicate`, `partial`, `partial(tp)`.
    fn placement(&mut self) -> Option<PlacementExpr<'a>> {
        let name = self.word(Expected::Placement)?;
        let (kind, axis) = match name.text {
            "shard" | "zigzag" => {
                self.expect(Kind::Punct('('), Expected::ShardDim)?;
                self.group(|p| {
                    let dim = p.int(Expected::ShardDim)?;
                    let axis = match p.eat(Kind::Punct(',')) {
                        Some(_) if !p.at_punct(')') => Some(p.word(Expected::Axis)?),
                        _ => None,
                    };
                    let kind = match name.text {
                        "shard" => PlacementKind::Shard(dim),
                        _ => PlacementKind::Zigzag(dim),
                    };
                    Some((kind, axis))
                })?
            }
            "replicate" => (PlacementKind::Replicate, self.optional_axis()?),
            "partial" => (PlacementKind::Partial, self.optional_axis()?),
            unknown => {
                let near = nearest(unknown, ["shard", "zigzag", "replicate", "partial"]);
                return self.sink.refuse(name.span, messages::unknown_placement(unknown, near));
            }
        };
        Some(PlacementExpr { span: name.span.to(self.last_span()), kind, axis })
    }

    /// `(tp)` or nothing; the outer `None` is a mistake.
    fn optional_axis(&mut self) -> Option<Option<Word<'a>>> {
        match self.eat(Kind::Punct('(')) {
            Some(_) => self.group(|p| p.word(Expected::Axis)).map(Some),
            None => Some(None),
        }
    }
}
