//! Which files of a crate name which: read from the syntax tree, followed through re-exports.

use crate::run::{Result, below, read};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};
use syn::{
    Attribute, Ident, Item, UseTree, Visibility,
    visit::{self, Visit},
};

/// A module's place: `["passes", "draft"]` is `crate::passes::draft`.
type Place = Vec<String>;

/// One file names another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// The file that names, relative to the crate's source.
    pub from: PathBuf,
    /// The line of the name.
    pub line: usize,
    /// The file in which the named item stands.
    pub to: PathBuf,
}

/// The files of a crate's source folder and what they name of each other, tests apart.
pub struct Source {
    modules: BTreeMap<Place, Module>,
}

/// One file.
struct Module {
    file: PathBuf,
    /// Names of the items that it defines.
    items: BTreeSet<String>,
    /// What it brings into its scope: the name, or `*`, and the path behind it.
    scope: Vec<(String, Vec<String>)>,
    names: Vec<Named>,
}

/// A path that a file names.
struct Named {
    line: usize,
    path: Vec<String>,
    /// `pub use` of something below: a facade's table of contents, not a dependency.
    contents: bool,
}

impl Source {
    /// Reads every `.rs` file below `folder`.
    pub fn read(folder: &Path) -> Result<Source> {
        let mut modules = BTreeMap::new();
        for file in rust_files(folder)? {
            let text = read(&file)?;
            let inner = file.strip_prefix(folder).unwrap_or(&file).to_path_buf();
            let place = place(&inner);
            let module = module(&text, inner, &place)
                .map_err(|e| format!("{}:{}: {e}", file.display(), e.span().start().line))?;
            modules.insert(place, module);
        }
        Ok(Source { modules })
    }

    /// Every import between two files, in order of files and lines.
    pub fn imports(&self) -> Vec<Import> {
        let mut found = BTreeSet::new();
        for module in self.modules.values() {
            for named in module.names.iter().filter(|n| !n.contents) {
                if let Some(to) = self.home(&named.path, 0)
                    && to.file != module.file
                {
                    let (from, to) = (module.file.clone(), to.file.clone());
                    found.insert(Import { from, line: named.line, to });
                }
            }
        }
        found.into_iter().collect()
    }

    /// The file in which the item at `path` stands. `None` is a path out of the crate.
    fn home(&self, path: &[String], depth: usize) -> Option<&Module> {
        let known = (0..=path.len()).rev().find(|n| self.modules.contains_key(&path[..*n]))?;
        let module = &self.modules[&path[..known]];
        let Some(name) = path.get(known) else { return Some(module) };
        if module.items.contains(name) || depth > 8 {
            return Some(module);
        }
        let rest = &path[known + 1..];
        let follow = |target: &Vec<String>| {
            let path: Vec<_> = target.iter().chain(rest).cloned().collect();
            self.home(&path, depth + 1)
        };
        if let Some((_, target)) = module.scope.iter().find(|(n, _)| n == name) {
            return follow(target);
        }
        let globs = module.scope.iter().filter(|(n, _)| n == "*");
        let mut behind = globs.filter_map(|(_, target)| {
            let path: Vec<_> = target.iter().chain(&path[known..]).cloned().collect();
            let home = self.home(&path, depth + 1)?;
            home.items.contains(name).then_some(home)
        });
        // A root without the name: a path that starts with another crate's name.
        behind.next().or((known > 0).then_some(module))
    }
}

/// The module of a file: `a/b.rs` and `a/b/mod.rs` are `a::b`.
fn place(file: &Path) -> Place {
    let mut place: Place =
        file.with_extension("").iter().map(|p| p.to_string_lossy().into_owned()).collect();
    if place.last().is_some_and(|l| ["mod", "lib", "main"].contains(&l.as_str())) {
        place.pop();
    }
    place
}

fn module(text: &str, file: PathBuf, place: &Place) -> syn::Result<Module> {
    let tree = syn::parse_file(text)?;
    let children = children(&tree.items);
    let items = tree.items.iter().filter(|i| !only_in_tests(attributes(i)));
    let items = items.filter_map(item_name).map(ToString::to_string).collect();
    let mut reader = Reader {
        place: place.clone(),
        root: place.len(),
        children,
        scope: Vec::new(),
        names: Vec::new(),
    };
    reader.visit_file(&tree);
    Ok(Module { file, items, scope: reader.scope, names: reader.names })
}

/// Modules that the file declares, which its `use` may start with.
fn children(items: &[Item]) -> BTreeSet<String> {
    let modules = items.iter().filter_map(|i| match i {
        Item::Mod(m) => Some(m.ident.to_string()),
        _ => None,
    });
    modules.collect()
}

/// Walks a file, the inline modules in it included.
struct Reader {
    place: Place,
    /// Depth of the file's own module; deeper places are inline modules.
    root: usize,
    children: BTreeSet<String>,
    scope: Vec<(String, Vec<String>)>,
    names: Vec<Named>,
}

impl Reader {
    /// The path from the crate's root, or `None` for another crate's.
    fn absolute(&self, path: &[String]) -> Option<Vec<String>> {
        let mut place = self.place.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            // Alone it is a visibility, `pub(crate)` in a macro's arguments.
            "crate" if path.len() > 1 => (place, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|s| s == "super") {
                    place.pop();
                    rest = &rest[1..];
                }
            }
            first if self.children.contains(first) && place.len() == self.root => {}
            _ => return None,
        }
        place.extend(rest.iter().cloned());
        Some(place)
    }

    fn name(&mut self, path: &[String], line: usize, contents: bool) {
        if let Some(path) = self.absolute(path) {
            self.names.push(Named { line, path, contents });
        }
    }

    fn uses(&mut self, tree: &UseTree, before: &[String], public: bool) {
        let mut path = before.to_vec();
        match tree {
            UseTree::Path(p) => {
                path.push(p.ident.to_string());
                self.uses(&p.tree, &path, public);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.uses(tree, before, public));
            }
            UseTree::Name(n) if n.ident == "self" => self.used(&n.ident, &path, None, public),
            UseTree::Name(n) => {
                path.push(n.ident.to_string());
                self.used(&n.ident, &path, None, public);
            }
            UseTree::Rename(r) => {
                path.push(r.ident.to_string());
                self.used(&r.ident, &path, Some(r.rename.to_string()), public);
            }
            UseTree::Glob(g) => {
                let line = g.star_token.spans[0].start().line;
                self.bring("*".into(), &path, line, public);
            }
        }
    }

    fn used(&mut self, ident: &Ident, path: &[String], rename: Option<String>, public: bool) {
        let last = path.last().cloned().unwrap_or_default();
        self.bring(rename.unwrap_or(last), path, ident.span().start().line, public);
    }

    fn bring(&mut self, name: String, path: &[String], line: usize, public: bool) {
        let Some(absolute) = self.absolute(path) else { return };
        let below = absolute.len() > self.place.len() && absolute.starts_with(&self.place);
        if self.place.len() == self.root {
            self.scope.push((name, absolute));
        }
        self.name(path, line, public && below);
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_item(&mut self, item: &'a Item) {
        if !only_in_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        self.place.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.place.pop();
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        let public = !matches!(item.vis, Visibility::Inherited);
        self.uses(&item.tree, &[], public);
    }

    /// `pub(in crate::a)` says who may look, not what is used.
    fn visit_vis_restricted(&mut self, _: &'a syn::VisRestricted) {}

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let names: Vec<_> = path.segments.iter().map(|s| s.ident.to_string()).collect();
            self.name(&names, path.segments[0].ident.span().start().line, false);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

impl Reader {
    /// Paths in a macro's arguments, which are not parsed: `crate::a::b`, `self::a`, `super::a`.
    fn tokens(&mut self, tokens: proc_macro2::TokenStream) {
        use proc_macro2::TokenTree;
        let (mut path, mut line, mut colons) = (Vec::new(), 0, 0);
        for token in tokens {
            match &token {
                TokenTree::Ident(i) if colons == 2 || path.is_empty() => {
                    if path.is_empty() {
                        line = i.span().start().line;
                    }
                    path.push(i.to_string());
                    colons = 0;
                }
                TokenTree::Punct(p) if p.as_char() == ':' && !path.is_empty() => colons += 1,
                _ => {
                    self.name(&path, line, false);
                    (path, colons) = (Vec::new(), 0);
                }
            }
            if let TokenTree::Group(group) = token {
                self.tokens(group.stream());
            }
        }
        self.name(&path, line, false);
    }
}

/// `#[cfg(test)]`, alone or in a list.
fn only_in_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|a| a.path().is_ident("cfg")).any(|a| match &a.meta {
        syn::Meta::List(list) => list.tokens.to_string() == "test",
        _ => false,
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Impl(i) => &i.attrs,
        Item::Macro(i) => &i.attrs,
        Item::Mod(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Use(i) => &i.attrs,
        _ => &[],
    }
}

fn item_name(item: &Item) -> Option<&Ident> {
    Some(match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Macro(i) => i.ident.as_ref()?,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::Type(i) => &i.ident,
        Item::Union(i) => &i.ident,
        // An inline module.
        Item::Mod(i) if i.content.is_some() => &i.ident,
        _ => return None,
    })
}

/// Rust files below a folder, `tests.rs` and `tests/` apart.
fn rust_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = below(folder, &|name| name != "tests")?;
    files.retain(|path| path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs"));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate of these files, none on disk.
    fn source(files: &[(&str, &str)]) -> Source {
        let modules = files.iter().map(|(file, text)| {
            let place = place(Path::new(file));
            let module = module(text, file.into(), &place).expect("it parses");
            (place, module)
        });
        Source { modules: modules.collect() }
    }

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize, String)> {
        let imports = source(files).imports();
        let text = |p: PathBuf| p.display().to_string();
        imports.into_iter().map(|i| (text(i.from), i.line, text(i.to))).collect()
    }

    fn owned(want: &[(&str, usize, &str)]) -> Vec<(String, usize, String)> {
        want.iter().map(|(a, n, b)| (a.to_string(), *n, b.to_string())).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "pub mod a;\npub mod b;\npub mod c;\npub use a::x::X;\n");
    const A: (&str, &str) = ("a/mod.rs", "mod x;\nmod y;\npub use x::X;\npub use y::*;\n");
    const X: (&str, &str) = ("a/x.rs", "pub struct X;\n");
    const Y: (&str, &str) = ("a/y.rs", "pub fn y() {}\n");

    #[test]
    fn re_exports_lead_to_the_file_that_defines() {
        let b = ("b.rs", "use crate::a::{X, y};\nuse crate::X as Z;\nuse std::fs;\n");
        let want = [("b.rs", 1, "a/x.rs"), ("b.rs", 1, "a/y.rs"), ("b.rs", 2, "a/x.rs")];
        assert_eq!(found(&[LIB, A, X, Y, b]), owned(&want));
    }

    #[test]
    fn paths_in_code_in_macros_and_by_super() {
        let c = "fn f() { crate::b::g() }\nfn g() { vec![super::a::y(), 2] }\n// crate::a::X\n";
        let found = found(&[LIB, A, X, Y, ("b.rs", "pub fn g() {}\n"), ("c.rs", c)]);
        assert_eq!(found, owned(&[("c.rs", 1, "b.rs"), ("c.rs", 2, "a/y.rs")]));
    }

    #[test]
    fn visibility_is_no_import() {
        let x = ("a/x.rs", "pub(in crate::a) struct X;\n");
        assert_eq!(found(&[LIB, A, x, Y, ("b.rs", ""), ("c.rs", "")]), owned(&[]));
    }

    #[test]
    fn tests_are_apart_and_inline_modules_are_of_their_file() {
        let b = "#[cfg(test)]\nmod tests { use crate::c::h; }\nmod i { use super::super::a::X; }\n";
        let found = found(&[LIB, A, X, Y, ("b.rs", b), ("c.rs", "pub fn h() {}\n")]);
        assert_eq!(found, owned(&[("b.rs", 3, "a/x.rs")]));
    }
}
