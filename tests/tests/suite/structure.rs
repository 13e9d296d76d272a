//! Checks of the structure: no cycle of imports and calls between the modules of a crate, and no long
//! function. Both read the source by its layout, which `cargo fmt` guarantees.

mod calls;
mod known;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most lines of a function.
const MOST_LINES: usize = 70;

pub(crate) type Module = Vec<String>;

/// The modules of a crate, each with those that it depends on, and the reason.
type Graph = BTreeMap<Module, BTreeMap<Module, String>>;

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns the source folders of the product's crates.
pub(crate) fn crates() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join("crates")).unwrap();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path().join("src")).collect();
    all.sort();
    all
}

/// Returns the source folders of the laboratory's crates.
fn laboratory() -> impl Iterator<Item = PathBuf> {
    let all = ["lab", "lab/attacks", "lab/guest", "lab/report", "lab/testkit"];
    all.into_iter().map(|name| repository().join(name).join("src"))
}

/// Returns the source files below a folder, without tests.
pub(crate) fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if matches!(name.as_str(), "tests" | "testing") || name.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Returns a file's text up to its unit tests, without comments.
pub(crate) fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let mark = "\n#[cfg(test)]\nmod ";
    let is_inline =
        |at: &usize| text[at + mark.len()..].lines().next().unwrap_or("").ends_with('{');
    let end = text.match_indices(mark).map(|(at, _)| at).find(is_inline);
    let text = &text[..end.unwrap_or(text.len())];
    let uncommented = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    uncommented.collect::<Vec<_>>().join("\n")
}

/// Returns the path in the module tree of a file in `source`.
fn module_of(source: &Path, path: &Path) -> Module {
    let relative = path.strip_prefix(source).unwrap().with_extension("");
    let names = relative.iter().map(|name| name.to_str().unwrap().to_owned());
    names.filter(|name| !matches!(name.as_str(), "lib" | "mod")).collect()
}

/// Appends the paths of a use tree: `a::{b, c::d}` has `a::b` and `a::c::d`.
fn expand(prefix: &str, tree: &str, into: &mut Vec<String>) {
    let tree = tree.trim();
    let Some((start, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        into.push(format!("{prefix}{}", path.trim()));
        return;
    };
    let body = rest.rsplit_once('}').map_or(rest, |(body, _)| body);
    let (mut depth, mut from) = (0, 0);
    for (at, byte) in body.bytes().chain([b',']).enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            b',' if depth == 0 => {
                let part = body.get(from..at).unwrap_or_default();
                if !part.trim().is_empty() {
                    expand(&format!("{prefix}{start}"), part, into);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// Returns the paths that a module imports.
pub(crate) fn uses(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for statement in code.split(';') {
        let start = statement.rfind("use ").filter(|at| {
            let before = statement[..*at].lines().last().unwrap_or_default().trim();
            before.is_empty() || before.starts_with("pub")
        });
        if let Some(at) = start {
            expand("", &statement[at + 4..].replace('\n', " "), &mut paths);
        }
    }
    paths
}

/// Returns the paths that a module imports, and those that its code names.
pub(crate) fn imports(code: &str) -> Vec<String> {
    let mut paths = uses(code);
    paths.extend(code.match_indices("::").filter_map(|(at, _)| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let start = code[..at].rfind(|c| !is_name(c)).map_or(0, |end| end + 1);
        let is_first = start < at && !code[..start].ends_with(':');
        let rest = &code[start..];
        let end = rest.find(|c| !is_name(c) && c != ':').unwrap_or(rest.len());
        // A path that ends here is the start of a use tree, or of type arguments.
        (is_first && !rest[..end].ends_with(':')).then(|| rest[..end].to_owned())
    }));
    paths
}

/// Returns the module that a path in `module` leads to; `None` outside of the crate, and for the
/// crate's root, which this check leaves out: modules import from there what the root exports.
pub(crate) fn resolve(
    modules: &BTreeMap<Module, String>,
    module: &Module,
    path: &str,
) -> Option<Module> {
    let mut names: Vec<&str> = path.split("::").filter(|name| !name.is_empty()).collect();
    let mut base: Module = Vec::new();
    match *names.first()? {
        "crate" => {
            names.remove(0);
        }
        "self" => {
            names.remove(0);
            base.clone_from(module);
        }
        "super" => {
            base.clone_from(module);
            while names.first() == Some(&"super") {
                base.pop();
                names.remove(0);
            }
        }
        first => {
            base.clone_from(module);
            base.push(first.to_owned());
            if !modules.contains_key(&base) {
                return None;
            }
            base.pop();
        }
    }
    base.extend(names.iter().map(|name| (*name).to_owned()));
    while !base.is_empty() && !modules.contains_key(&base) {
        base.pop();
    }
    (!base.is_empty() && base != *module).then_some(base)
}

/// Returns the modules of a crate, with their code.
pub(crate) fn modules(source: &Path) -> BTreeMap<Module, String> {
    let mut paths = Vec::new();
    files(source, &mut paths);
    paths.iter().map(|path| (module_of(source, path), code(path))).collect()
}

/// Returns the imports of each module of a crate.
fn import_graph(modules: &BTreeMap<Module, String>) -> Graph {
    let targets = |(module, code): (&Module, &String)| {
        let paths = imports(code).into_iter();
        let targets = paths.filter_map(|path| resolve(modules, module, &path));
        targets.map(|target| (target, "import".to_owned())).collect()
    };
    modules.iter().map(|one| (one.0.clone(), targets(one))).collect()
}

/// Adds the calls of methods that other files define.
fn add_calls(modules: &BTreeMap<Module, String>, graph: &mut Graph) {
    for (from, to, method) in calls::Types::new(modules).edges() {
        let targets = graph.entry(from).or_default();
        targets.entry(to).or_insert(format!("call of {method}"));
    }
}

/// Returns a cycle that `module` is part of, reached by the modules in `trail`.
fn cycle(
    graph: &Graph,
    module: &Module,
    trail: &mut Vec<Module>,
    done: &mut Vec<Module>,
) -> Option<Vec<Module>> {
    if let Some(at) = trail.iter().position(|one| one == module) {
        return Some(trail[at..].to_vec());
    }
    if done.contains(module) {
        return None;
    }
    trail.push(module.clone());
    let found = graph[module].keys().find_map(|next| cycle(graph, next, trail, done));
    trail.pop();
    done.push(module.clone());
    found
}

fn name(module: &Module) -> String {
    module.join("::")
}

/// Returns a cycle in words, if there is one.
fn first_cycle(graph: &Graph) -> Option<String> {
    let mut done = Vec::new();
    let found = graph.keys().find_map(|module| cycle(graph, module, &mut Vec::new(), &mut done))?;
    let next = found.iter().cycle().skip(1);
    let steps = found
        .iter()
        .zip(next)
        .map(|(from, to)| format!("{} -> {} ({})", name(from), name(to), graph[from][to]));
    Some(steps.collect::<Vec<_>>().join(", "))
}

/// Returns the functions of a text with more than `most` lines, and their lengths.
fn long_functions(text: &str, most: usize) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut long = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some((before, after)) = code.split_once("fn ") else { continue };
        let words = ["pub", "const", "unsafe", "async", "extern"];
        let is_function = before
            .split_whitespace()
            .all(|word| words.iter().any(|one| word.starts_with(one)) || word.ends_with('"'));
        if !is_function || line.ends_with(';') {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        let rest = &lines[start..];
        let count = rest.iter().position(|line| **line == *end).map_or(1, |at| at + 1);
        if count > most {
            let name = after.split(['(', '<']).next().unwrap_or_default();
            long.push((name.to_owned(), count));
        }
    }
    long
}

#[test]
fn no_modules_of_a_crate_import_each_other_in_a_cycle() {
    let all = crates().into_iter().map(|source| (import_graph(&modules(&source)), source));
    let graphs: Vec<_> = all.collect();
    for (graph, source) in &graphs {
        assert_eq!(first_cycle(graph), None, "{}", source.display());
    }
    assert!(graphs.len() >= 15, "{} crates are too few", graphs.len());
    let modules: usize = graphs.iter().map(|(graph, _)| graph.len()).sum();
    assert!(modules > 250, "{modules} modules are too few");
    let engine = graphs.iter().find(|(_, source)| source.ends_with("engine/src")).unwrap();
    let engine = &engine.0[&vec!["engine".to_owned()]];
    assert!(engine.len() > 10, "the engine imports its parts: {engine:?}");
}

/// Removes the known dependencies of a crate from its graph. Checks that each is there, and still closes
/// a cycle that the others leave.
fn without_known(source: &str, mut graph: Graph) -> Graph {
    let module = |path: &str| path.split("::").map(str::to_owned).collect::<Module>();
    let known = known::KNOWN.iter().filter(|(of, ..)| *of == source);
    let known: Vec<(Module, Module)> =
        known.flat_map(|(_, from, to)| to.iter().map(|to| (module(from), module(to)))).collect();
    let mut removed = Vec::new();
    for (from, to) in known {
        let reason = graph.get_mut(&from).and_then(|targets| targets.remove(&to));
        let place = || format!("{source}: {} -> {}", name(&from), name(&to));
        let reason = reason.unwrap_or_else(|| panic!("{}: delete it from known.rs", place()));
        removed.push((from, to, reason));
    }
    for (from, to, reason) in removed {
        graph.get_mut(&from).unwrap().insert(to.clone(), reason);
        let cycle = first_cycle(&graph);
        let place = format!("{source}: {} -> {}", name(&from), name(&to));
        assert!(cycle.is_some(), "{place} closes no cycle any more: delete it from known.rs");
        graph.get_mut(&from).unwrap().remove(&to);
    }
    graph
}

#[test]
fn no_modules_of_a_crate_depend_on_each_other_in_a_cycle() {
    let mut found = 0;
    let sources: Vec<_> = crates().into_iter().chain(laboratory()).collect();
    let mut names = Vec::new();
    for source in &sources {
        let modules = modules(source);
        let mut graph = import_graph(&modules);
        let imports: usize = graph.values().map(BTreeMap::len).sum();
        add_calls(&modules, &mut graph);
        found += graph.values().map(BTreeMap::len).sum::<usize>() - imports;
        let name = source.strip_prefix(repository()).unwrap().parent().unwrap().to_str().unwrap();
        let graph = without_known(name, graph);
        assert_eq!(first_cycle(&graph), None, "{name}: remove the cycle, known.rs only shrinks");
        names.push(name.to_owned());
    }
    for (of, ..) in known::KNOWN {
        assert!(names.iter().any(|name| name == of), "{of} is no crate");
    }
    assert!(names.len() >= 20, "{names:?} are too few");
    assert!(found > 100, "{found} dependencies by calls are too few");
}

#[test]
fn functions_are_short() {
    let mut paths = Vec::new();
    for folder in crates().into_iter().chain(laboratory()) {
        files(&folder, &mut paths);
    }
    assert!(paths.len() > 300, "{} files are too few", paths.len());
    let mut functions = 0;
    for path in paths {
        let text = code(&path);
        functions += long_functions(&text, 0).len();
        assert_eq!(long_functions(&text, MOST_LINES), [], "{}", path.display());
    }
    assert!(functions > 2500, "{functions} functions are too few");
}

#[test]
fn a_cycle_and_a_long_function_are_found() {
    let module = |name: &str| vec![name.to_owned()];
    let names = ["a", "b", "c"].map(module);
    let modules = BTreeMap::from(names.clone().map(|name| (name, String::new())));
    let text = "use std::io;\nuse crate::{b::{B, E}, c};\nfn f() { crate::c::g(d::H) }\n";
    let found = imports(text);
    let imported = ["std::io", "crate::b::B", "crate::b::E", "crate::c"];
    let named = ["std::io", "crate::c::g", "d::H"];
    assert_eq!(found, [imported.as_slice(), &named].concat());
    let [a, b, c] = names;
    assert_eq!(resolve(&modules, &a, "crate::b::B"), Some(b.clone()));
    assert_eq!(resolve(&modules, &a, "super::c"), Some(c.clone()));
    assert_eq!(resolve(&modules, &a, "std::io"), None);
    let to = |module: &Module| BTreeMap::from([(module.clone(), "import".to_owned())]);
    let mut graph = Graph::from([(a.clone(), to(&b)), (b, to(&c)), (c.clone(), BTreeMap::new())]);
    assert_eq!(first_cycle(&graph), None);
    graph.insert(c, to(&a));
    let cycle = "a -> b (import), b -> c (import), c -> a (import)";
    assert_eq!(first_cycle(&graph).as_deref(), Some(cycle));
    let text = "impl A {\n    pub(crate) fn long<T>(a: T) {\n        a();\n    }\n    fn b();\n}\n";
    assert_eq!(long_functions(text, 2), [("long".to_owned(), 3)]);
    assert_eq!(long_functions(text, 3), []);
}
