//! A position in the words of a text.

use super::{
    ReadError, Result,
    lexer::{Kind, Token},
};
use crate::{
    entity::{DimId, Entity},
    expr::{Expr, Var},
};
use std::{
    collections::{HashMap, HashSet},
    str::FromStr,
};

/// Longest name that is read, in bytes: messages and printed plans repeat names.
const MAX_NAME: usize = 4096;

pub(crate) struct Cursor<'a> {
    source: &'a str,
    tokens: &'a [Token<'a>],
    at: usize,
    /// Dimensions by name, the first of each.
    dims: HashMap<&'a str, DimId>,
    buffers: HashSet<String>,
}

/// Names that an expression may use.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope<'a> {
    names: Vec<(&'a str, Var)>,
}

impl<'a> Scope<'a> {
    pub fn plan() -> Self {
        Scope { names: vec![("rank", Var::RANK)] }
    }
    pub fn family() -> Self {
        Scope { names: vec![("rank", Var::RANK), ("epoch", Var::EPOCH)] }
    }
    pub fn bind(&mut self, name: &'a str, var: Var) {
        self.names.push((name, var));
    }
    pub fn with(&self, name: &'a str, var: Var) -> Self {
        let mut scope = self.clone();
        scope.bind(name, var);
        scope
    }
    /// The innermost binding.
    pub fn get(&self, name: &str) -> Option<Var> {
        self.names.iter().rev().find(|n| n.0 == name).map(|n| n.1)
    }
    pub fn known(&self) -> String {
        self.names.iter().map(|n| n.0).collect::<Vec<_>>().join(", ")
    }
}

impl<'a> Cursor<'a> {
    pub fn new(source: &'a str, tokens: &'a [Token<'a>]) -> Self {
        Cursor { source, tokens, at: 0, dims: HashMap::new(), buffers: HashSet::new() }
    }
    /// The lexer ends every text with an `End`, which is never passed.
    pub fn peek(&self) -> &'a Token<'a> {
        &self.tokens[self.at.min(self.tokens.len() - 1)]
    }
    pub fn bump(&mut self) -> &'a Token<'a> {
        let token = self.peek();
        self.at += usize::from(token.kind != Kind::End);
        token
    }
    pub fn at_end(&self) -> bool {
        self.peek().kind == Kind::End
    }
    pub fn at_newline(&self) -> bool {
        matches!(self.peek().kind, Kind::Newline | Kind::End)
    }
    pub fn skip_newlines(&mut self) {
        while self.peek().kind == Kind::Newline {
            self.bump();
        }
    }
    /// An error looks for its line in the whole text: make none before something is wrong.
    pub fn error_at(&self, token: &Token<'_>, message: impl Into<String>) -> ReadError {
        ReadError::new(self.source, token.at, message)
    }
    pub fn error_here(&self, message: impl Into<String>) -> ReadError {
        self.error_at(self.peek(), message)
    }
    pub fn expected_at(&self, token: &Token<'_>, what: &str) -> ReadError {
        let found = match token.kind {
            Kind::End => "the end of the text".into(),
            Kind::Newline => "the end of the line".into(),
            _ => format!("`{}`", token.text.chars().take(40).collect::<String>()),
        };
        self.error_at(token, format!("expected {what}, found {found}"))
    }
    pub fn expected(&self, what: &str) -> ReadError {
        self.expected_at(self.peek(), what)
    }
    /// A dimension that was declared before.
    pub fn dim(&self, name: &str) -> Option<DimId> {
        self.dims.get(name).copied()
    }
    pub fn declare_dim(&mut self, name: &'a str, id: DimId) {
        self.dims.entry(name).or_insert(id);
    }
    /// Whether no buffer before has the name.
    pub fn declare_buffer(&mut self, name: &str) -> bool {
        self.buffers.insert(name.to_string())
    }
    /// The name that a later `each name in …` on this line binds.
    pub fn each_on_line(&self) -> Option<&'a str> {
        let line = self.tokens.get(self.at..)?.split(|t| t.kind == Kind::Newline).next()?;
        let each = line.iter().position(|t| t.kind == Kind::Word && t.text == "each")?;
        line.get(each + 1).filter(|t| t.kind == Kind::Word).map(|t| t.text)
    }
    pub fn newline(&mut self) -> Result<()> {
        if self.at_newline() {
            self.bump();
            return Ok(());
        }
        Err(self.expected("the end of the line"))
    }
    pub fn eat_word(&mut self, word: &str) -> bool {
        let hit = self.peek().kind == Kind::Word && self.peek().text == word;
        self.at += usize::from(hit);
        hit
    }
    pub fn eat_sign(&mut self, sign: &str) -> bool {
        let hit = self.peek().kind == Kind::Sign && self.peek().text == sign;
        self.at += usize::from(hit);
        hit
    }
    pub fn sign(&mut self, sign: &str) -> Result<()> {
        if self.eat_sign(sign) { Ok(()) } else { Err(self.expected(&format!("`{sign}`"))) }
    }
    pub fn keyword(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word) { Ok(()) } else { Err(self.expected(&format!("`{word}`"))) }
    }
    pub fn word(&mut self) -> Result<&'a str> {
        match self.peek().kind {
            Kind::Word => {
                self.short()?;
                Ok(self.bump().text)
            }
            _ => Err(self.expected("a name")),
        }
    }
    /// The name of a dimension, with or without a `$`.
    pub fn name(&mut self) -> Result<&'a str> {
        match self.peek().kind {
            Kind::Name => {
                self.short()?;
                Ok(self.bump().text)
            }
            _ => self.word(),
        }
    }
    fn short(&self) -> Result<()> {
        if self.peek().text.len() <= MAX_NAME {
            return Ok(());
        }
        Err(self.expected(&format!("a name of at most {MAX_NAME} bytes")))
    }
    pub fn text(&mut self) -> Result<String> {
        match self.peek().kind {
            Kind::Text => {
                self.short()?;
                let text = self.peek().text;
                let name = &text[1..text.len() - 1];
                // The printer would write it otherwise, and it could not be read back.
                if format!("{name:?}") != text {
                    return Err(self.expected("a name without backslashes and control characters"));
                }
                self.bump();
                Ok(name.to_string())
            }
            _ => Err(self.expected("a name in quotes")),
        }
    }
    pub fn one_of<'w>(&mut self, words: &[&'w str]) -> Result<&'w str> {
        let found =
            words.iter().find(|w| self.peek().kind == Kind::Word && self.peek().text == **w);
        match found {
            Some(word) => {
                self.bump();
                Ok(word)
            }
            None => Err(self.expected(&format!("one of `{}`", words.join("`, `")))),
        }
    }
    pub fn named<T>(&mut self, names: &[&str], read: impl Fn(&str) -> Option<T>) -> Result<T> {
        let token = self.peek();
        let word = self.one_of(names)?;
        read(word)
            .ok_or_else(|| self.expected_at(token, &format!("one of `{}`", names.join("`, `"))))
    }
    /// A number without sign, decimal or hexadecimal.
    pub fn number<T: TryFrom<u32>>(&mut self) -> Result<T> {
        let text = self.peek().text;
        let value = match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => u32::from_str(text),
        };
        let read = value.ok().filter(|_| self.peek().kind == Kind::Number);
        match read.map(T::try_from) {
            Some(Ok(v)) => {
                self.bump();
                Ok(v)
            }
            Some(Err(_)) => Err(self.expected("a smaller number")),
            None => Err(self.expected("a number of at most 32 bits")),
        }
    }
    pub fn signed(&mut self) -> Result<i32> {
        if self.eat_sign("-") {
            let magnitude: u32 = self.number()?;
            return i32::try_from(-i64::from(magnitude))
                .map_err(|_| self.error_here("the number does not fit in 32 bits"));
        }
        self.number()
    }
    /// `name=number`.
    pub fn setting(&mut self, name: &str) -> Result<u32> {
        self.keyword(name)?;
        self.sign("=")?;
        self.number()
    }
    /// Expressions in brackets.
    pub fn bracketed(&mut self, scope: &Scope<'_>) -> Result<Vec<Expr>> {
        self.sign("[")?;
        let mut list = Vec::new();
        if self.eat_sign("]") {
            return Ok(list);
        }
        loop {
            list.push(self.expr(scope)?);
            if !self.eat_sign(",") {
                self.sign("]")?;
                return Ok(list);
            }
        }
    }
    /// The id of the entity being declared: ids stand in order.
    pub fn id<K: Entity>(&mut self, n: usize) -> Result<()> {
        let want = K::new(n).to_string();
        if self.eat_word(&want) {
            return Ok(());
        }
        Err(self.expected(&format!("`{want}` (ids are given in order)")))
    }

    /// The id of an entity declared elsewhere.
    pub fn reference<K: Entity>(&mut self) -> Result<K> {
        let digits = self.peek().text.strip_prefix(K::PREFIX).and_then(|d| d.parse::<u32>().ok());
        match digits {
            Some(n) if n < u32::MAX => {
                self.bump();
                Ok(K::new(n as usize))
            }
            _ => Err(self.expected(&format!("an id such as `{}0`", K::PREFIX))),
        }
    }
    /// `name=word`.
    pub fn choice(&mut self, name: &str, words: &[&'static str]) -> Result<&'static str> {
        self.keyword(name)?;
        self.sign("=")?;
        self.one_of(words)
    }
    /// `stages=3`.
    pub fn stages(&mut self) -> Result<u32> {
        let token = self.peek();
        let n = self.setting("stages")?;
        if (1..=64).contains(&n) {
            return Ok(n);
        }
        Err(self.error_at(token, "`stages` is a number from 1 to 64"))
    }
    /// `128x256x64`, which is one word to the lexer: as many sides as a tile has, each up to `most`; `None` for
    /// anything else.
    pub fn sides<const N: usize>(&mut self, most: u32) -> Option<[u32; N]> {
        let sides = self.peek().text.split('x').filter_map(|s| s.parse().ok());
        let sides = <[u32; N]>::try_from(sides.collect::<Vec<u32>>()).ok();
        let sides = sides.filter(|b| b.iter().all(|s| (1..=most).contains(s)))?;
        self.bump();
        Some(sides)
    }
    /// `block=128x256x64`.
    pub fn block<const N: usize>(&mut self) -> Result<[u32; N]> {
        self.keyword("block")?;
        self.sign("=")?;
        self.sides(1024).ok_or_else(|| {
            self.expected(match N {
                2 => "a tile such as `128x64`, each side from 1 to 1024",
                _ => "a tile such as `128x256x64`, each side from 1 to 1024",
            })
        })
    }
}
