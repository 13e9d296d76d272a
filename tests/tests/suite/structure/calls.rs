//! Calls of inherent methods in other files. An inherent `impl` may lie in any file of the crate, and a
//! call of its methods needs no import, so that the imports alone hide such cycles.

use std::collections::{BTreeMap, BTreeSet};

use super::{Module, resolve, uses};

/// A type: the module that defines it, and its name.
type Type = (Module, String);

/// The types of a crate, as its modules name them.
pub(super) struct Types<'a> {
    modules: &'a BTreeMap<Module, String>,
    uses: BTreeMap<&'a Module, Vec<String>>,
    defined: BTreeMap<&'a Module, BTreeSet<&'a str>>,
}

/// An `impl` block: its type, and its body.
struct Impl<'a> {
    module: &'a Module,
    of: Type,
    is_inherent: bool,
    body: String,
}

/// Returns a line without its visibility.
fn without_visibility(line: &str) -> &str {
    match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(line, |(_, rest)| rest),
        Some(rest) => rest.strip_prefix(' ').unwrap_or(line),
        None => line,
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the name at the start of a text.
fn name_of(text: &str) -> &str {
    &text[..text.find(|c| !is_name(c)).unwrap_or(text.len())]
}

/// Returns the name of the type that a line defines.
fn defined(line: &str) -> Option<&str> {
    let line = without_visibility(line);
    let (keyword, rest) = line.split_once(' ')?;
    ["struct", "enum", "union", "trait", "type"].contains(&keyword).then(|| name_of(rest))
}

/// Returns the path of a type behind references and smart pointers, without its arguments.
fn path_of(text: &str) -> &str {
    let mut text = text.trim();
    loop {
        let inner = if let Some(rest) = text.strip_prefix('&') {
            let rest = rest.trim_start();
            let rest = match rest.strip_prefix('\'') {
                Some(lifetime) => lifetime.split_once(' ').map_or("", |(_, rest)| rest),
                None => rest,
            };
            rest.strip_prefix("mut ").unwrap_or(rest)
        } else if let Some(inner) =
            ["Box<", "Arc<", "Rc<"].iter().find_map(|pointer| text.strip_prefix(pointer))
        {
            inner
        } else {
            break;
        };
        text = inner.trim();
    }
    &text[..text.find(|c| !is_name(c) && c != ':').unwrap_or(text.len())]
}

/// Returns the blocks of a module's code that begin at the left margin, with a line for which `is_start`
/// holds: the text before the brace, and the body.
fn blocks(code: &str, is_start: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let mut lines = code.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if !is_start(line) {
            continue;
        }
        let mut head = line.to_owned();
        while !head.ends_with(['{', '}', ';']) {
            let Some(line) = lines.next() else { break };
            head = format!("{head}\n{line}");
        }
        if let Some(head) = head.strip_suffix('{') {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "}").collect();
            found.push((head.trim_end().to_owned(), body.join("\n")));
        }
    }
    found
}

/// Returns a text without the generic parameters at its start.
fn without_parameters(text: &str) -> &str {
    let (mut depth, mut before) = (0, ' ');
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if at == 0 { text } else { &text[at + 1..] };
        }
        before = c;
    }
    text
}

/// Returns the path of the type of an `impl`, and `true` if no trait is implemented.
fn implemented(head: &str) -> (&str, bool) {
    let head = head.trim_start_matches("unsafe ").trim_start_matches("impl");
    let head = head.split("\nwhere").next().unwrap_or_default();
    let head = without_parameters(head).trim();
    match head.rsplit_once(" for ") {
        Some((_, of)) => (path_of(of), false),
        None => (path_of(head), true),
    }
}

/// Returns the names of the functions that the body of an `impl` defines.
fn functions(body: &str) -> impl Iterator<Item = &str> {
    let lines = body.lines().filter_map(|line| line.strip_prefix("    "));
    lines.filter_map(|line| {
        let (before, after) = without_visibility(line).split_once("fn ")?;
        let is_modifier = |word: &str| ["const", "unsafe", "async", "extern"].contains(&word);
        before.split_whitespace().all(is_modifier).then(|| name_of(after))
    })
}

/// Returns the calls of methods in a body: the fields from `self` on, and the method.
fn calls(body: &str) -> Vec<(Vec<&str>, &str)> {
    let mut found = Vec::new();
    for (at, word) in body.match_indices("self").chain(body.match_indices("Self")) {
        let rest = &body[at + word.len()..];
        if body[..at].ends_with(is_name) || rest.starts_with(is_name) {
            continue;
        }
        let (mark, mut fields) = (if word == "self" { "." } else { "::" }, Vec::new());
        let mut rest = rest.trim_start();
        while let Some(after) = rest.strip_prefix(mark) {
            let name = name_of(after.trim_start());
            rest = after.trim_start()[name.len()..].trim_start();
            if rest.starts_with('(') || rest.starts_with("::<") {
                found.push((fields, name));
                break;
            }
            fields.push(name);
        }
    }
    found
}

impl<'a> Types<'a> {
    pub(super) fn new(modules: &'a BTreeMap<Module, String>) -> Types<'a> {
        let uses = modules.iter().map(|(module, code)| (module, uses(code))).collect();
        let names = |code: &'a String| code.lines().filter_map(defined).collect();
        let defined = modules.iter().map(|(module, code)| (module, names(code))).collect();
        Types { modules, uses, defined }
    }

    /// Returns the type of a path in a module, through at most `depth` imports.
    fn find(&self, module: &Module, path: &str, depth: usize) -> Option<Type> {
        let name = path.rsplit("::").next().unwrap_or_default();
        let is_here = |module: &Module| self.defined[module].contains(name);
        if path == name && is_here(module) {
            return Some((module.clone(), name.to_owned()));
        }
        if depth == 0 {
            return None;
        }
        let paths = if path == name { self.uses[module].clone() } else { vec![path.to_owned()] };
        paths.iter().find_map(|one| {
            let last = one.rsplit("::").next().unwrap_or_default();
            if last != name && last != "*" {
                return None;
            }
            let target = resolve(self.modules, module, one)?;
            if is_here(&target) {
                return Some((target, name.to_owned()));
            }
            (last == name).then(|| self.find(&target, name, depth - 1)).flatten()
        })
    }

    /// Returns the types of the fields of all structs.
    fn fields(&self) -> BTreeMap<Type, BTreeMap<String, Type>> {
        let mut all = BTreeMap::new();
        for (module, code) in self.modules {
            let is_struct = |line: &str| without_visibility(line).starts_with("struct ");
            for (head, body) in blocks(code, is_struct) {
                let fields = body.lines().filter_map(|line| {
                    let line = without_visibility(line.strip_prefix("    ")?.strip_suffix(',')?);
                    let (name, of) = line.split_once(": ")?;
                    let of = self.find(module, path_of(of), 5)?;
                    (name_of(name) == name).then(|| (name.to_owned(), of))
                });
                let name = defined(&head).unwrap_or_default().to_owned();
                all.insert((module.clone(), name), fields.collect());
            }
        }
        all
    }

    fn impls(&self) -> Vec<Impl<'a>> {
        let mut all = Vec::new();
        for (module, code) in self.modules {
            let is_impl = |line: &str| {
                let rest = line.trim_start_matches("unsafe ").strip_prefix("impl");
                rest.is_some_and(|rest| !rest.starts_with(is_name))
            };
            for (head, body) in blocks(code, is_impl) {
                let (path, is_inherent) = implemented(&head);
                if let Some(of) = self.find(module, path, 5) {
                    all.push(Impl { module, of, is_inherent, body });
                }
            }
        }
        all
    }

    /// Returns the calls of methods that another file defines: the modules of the call and of the
    /// method, and the method's name. A call is by `self` or by one of its fields.
    pub(super) fn edges(&self) -> Vec<(Module, Module, String)> {
        let (fields, impls) = (self.fields(), self.impls());
        let mut methods = BTreeMap::<(&Type, &str), BTreeSet<&Module>>::new();
        for one in impls.iter().filter(|one| one.is_inherent) {
            for name in functions(&one.body) {
                methods.entry((&one.of, name)).or_default().insert(one.module);
            }
        }
        let mut edges = Vec::new();
        for one in &impls {
            for (path, method) in calls(&one.body) {
                let of = path.iter().try_fold(&one.of, |of, field| fields.get(of)?.get(*field));
                let Some(there) = of.and_then(|of| methods.get(&(of, method))) else { continue };
                if !there.contains(one.module) {
                    let to = there.iter().map(|to| (one.module.clone(), (*to).clone()));
                    edges.extend(to.map(|(from, to)| (from, to, method.to_owned())));
                }
            }
        }
        edges
    }
}

#[test]
fn calls_of_methods_in_other_files_are_found() {
    let module = |name: &str| vec![name.to_owned()];
    let texts = [
        (
            "a",
            "use crate::b::{B, Inner};\npub(crate) struct A {\n    inner: Box<Inner>,\n}\n\
             impl A {\n    pub(crate) fn here(&self) {\n        self.inner.run();\n        \
             self\n            .there();\n        self.here();\n    }\n}\n",
        ),
        (
            "b",
            "use crate::a::A;\npub struct Inner;\nimpl<T: Fn() -> A> Inner {\n    fn run(&self) {}\n}\n\
             impl A {\n    const fn there(&self) {\n        Self::here();\n    }\n}\n\
             impl Drop for A {\n    fn drop(&mut self) {\n        self.here();\n    }\n}\n",
        ),
    ];
    let modules = texts.map(|(name, text)| (module(name), text.to_owned())).into();
    let edges = Types::new(&modules).edges();
    let edge = |from, to, method: &str| (module(from), module(to), method.to_owned());
    let forth = [edge("a", "b", "run"), edge("a", "b", "there")];
    let back = [edge("b", "a", "here"), edge("b", "a", "here")];
    assert_eq!(edges, [forth, back].concat());
}
