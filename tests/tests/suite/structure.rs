//! Checks of the structure: no import cycle between the modules of a crate, and no long function.
//! Both read the source by its layout, which `cargo fmt` guarantees.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The most lines of a function.
const MOST_LINES: usize = 70;

type Module = Vec<String>;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

/// Returns the source folders of the product's crates.
fn crates() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository().join("crates")).unwrap();
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path().join("src")).collect();
    all.sort();
    all
}

/// Returns the source files below a folder, without tests.
fn files(folder: &Path, into: &mut Vec<PathBuf>) {
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
fn code(path: &Path) -> String {
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

/// Returns the paths that a module imports, and those that its code names.
fn imports(code: &str) -> Vec<String> {
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
fn resolve(modules: &BTreeMap<Module, String>, module: &Module, path: &str) -> Option<Module> {
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

/// Returns the imports of each module of a crate.
fn graph(source: &Path) -> BTreeMap<Module, Vec<Module>> {
    let mut paths = Vec::new();
    files(source, &mut paths);
    let modules: BTreeMap<Module, String> =
        paths.iter().map(|path| (module_of(source, path), code(path))).collect();
    let targets = |(module, code): (&Module, &String)| {
        let paths = imports(code).into_iter();
        paths.filter_map(|path| resolve(&modules, module, &path)).collect()
    };
    modules.iter().map(|one| (one.0.clone(), targets(one))).collect()
}

/// Returns a cycle that `module` is part of, reached by the modules in `trail`.
fn cycle(
    graph: &BTreeMap<Module, Vec<Module>>,
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
    let found = graph[module].iter().find_map(|next| cycle(graph, next, trail, done));
    trail.pop();
    done.push(module.clone());
    found
}

fn first_cycle(graph: &BTreeMap<Module, Vec<Module>>) -> Option<String> {
    let mut done = Vec::new();
    let found = graph.keys().find_map(|module| cycle(graph, module, &mut Vec::new(), &mut done))?;
    Some(found.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(" -> "))
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
    let graphs: Vec<_> = crates().into_iter().map(|source| (graph(&source), source)).collect();
    for (graph, source) in &graphs {
        assert_eq!(first_cycle(graph), None, "{}", source.display());
    }
    assert!(graphs.len() >= 15, "{} crates are too few", graphs.len());
    let modules: usize = graphs.iter().map(|(graph, _)| graph.len()).sum();
    assert!(modules > 250, "{modules} modules are too few");
    let server = graphs.iter().find(|(_, source)| source.ends_with("server/src")).unwrap();
    let engine = &server.0[&vec!["engine".to_owned()]];
    assert!(engine.len() > 10, "the engine imports its parts: {engine:?}");
}

#[test]
fn functions_are_short() {
    let mut paths = Vec::new();
    for folder in crates()
        .into_iter()
        .chain(["lab/src", "lab/guest/src", "lab/report/src"].map(|path| repository().join(path)))
    {
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
    let mut graph = BTreeMap::from([
        (a.clone(), vec![b.clone()]),
        (b, vec![c.clone()]),
        (c.clone(), Vec::new()),
    ]);
    assert_eq!(first_cycle(&graph), None);
    graph.insert(c, vec![a]);
    assert_eq!(first_cycle(&graph).as_deref(), Some("a -> b -> c"));
    let text = "impl A {\n    pub(crate) fn long<T>(a: T) {\n        a();\n    }\n    fn b();\n}\n";
    assert_eq!(long_functions(text, 2), [("long".to_owned(), 3)]);
    assert_eq!(long_functions(text, 3), []);
}
