//! The laboratory is its own workspace, and shares builds with the product's workspace: both have the same
//! dependencies, lints and profiles, as far as the laboratory needs them.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(file: &str) -> Table {
    let text = std::fs::read_to_string(repository().join(file)).unwrap();
    text.parse().unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn at<'a>(table: &'a Table, path: &[&str]) -> &'a Table {
    path.iter().fold(table, |table, name| table[*name].as_table().unwrap())
}

/// Returns a dependency with its path as seen from the repository's root, and without the version that only crates that can
/// be published need.
fn rooted(dependency: &Value) -> Value {
    let mut dependency = unversioned(dependency);
    if let Some(path) = dependency.get_mut("path") {
        let from_lab = path.as_str().unwrap();
        *path = match from_lab.strip_prefix("../") {
            Some(from_root) => from_root.into(),
            None => format!("lab/{from_lab}").into(),
        };
    }
    dependency
}

/// Returns a dependency on a crate of this repository without its version.
fn unversioned(dependency: &Value) -> Value {
    let mut dependency = dependency.clone();
    if let Some(table) = dependency.as_table_mut().filter(|table| table.contains_key("path")) {
        table.remove("version");
    }
    dependency
}

#[test]
fn the_laboratory_builds_as_the_product_does() {
    let (product, lab) = (read("Cargo.toml"), read("lab/Cargo.toml"));
    let path = ["workspace", "lints"];
    assert_eq!(at(&lab, &path), at(&product, &path), "[workspace.lints]");
    // The laboratory is not published, and needs the newest Rust of both.
    let path = ["workspace", "package"];
    for key in ["edition", "license", "version"] {
        assert_eq!(at(&lab, &path)[key], at(&product, &path)[key], "{key} of [workspace.package]");
    }
    // Libraries that only the laboratory has.
    let own = ["criterion", "towpath-guest", "towpath-report"];
    let path = ["workspace", "dependencies"];
    for (name, dependency) in at(&lab, &path) {
        if !own.contains(&name.as_str()) {
            let expected = at(&product, &path).get(name).map(unversioned);
            assert_eq!(Some(rooted(dependency)), expected, "{name} in lab/Cargo.toml");
        }
    }
    // Crates that only the product's tests have.
    let absent = ["sha2", "smoltcp"];
    let mut profiles = product["profile"].clone();
    let packages = profiles["dev"]["package"].as_table_mut().unwrap();
    for name in absent {
        assert!(packages.remove(name).is_some(), "{name} in Cargo.toml");
    }
    // A library that only the laboratory has.
    let mut own = lab["profile"].clone();
    let release = own["release"].as_table_mut().unwrap();
    let overrides = release.remove("package").expect("[profile.release.package] in lab/Cargo.toml");
    assert_eq!(overrides.as_table().unwrap().keys().collect::<Vec<_>>(), ["kuva"]);
    assert_eq!(own, profiles, "[profile]");
}

/// A library that has two versions is built twice.
#[test]
fn both_workspaces_lock_the_same_versions() {
    let versions = |file: &str| -> Vec<(String, String)> {
        let packages = read(file)["package"].as_array().unwrap().clone();
        let text = |package: &Value, key: &str| package[key].as_str().unwrap().to_owned();
        packages.iter().map(|one| (text(one, "name"), text(one, "version"))).collect()
    };
    let product = versions("Cargo.lock");
    for (name, version) in versions("lab/Cargo.lock") {
        let locked: Vec<_> = product.iter().filter(|one| one.0 == name).collect();
        let same = locked.is_empty() || locked.iter().any(|one| one.1 == version);
        assert!(same, "lab/Cargo.lock has {name} {version}, Cargo.lock has {locked:?}");
    }
}
