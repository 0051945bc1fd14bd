//! The public interface of the library is the one in docs/api.txt, so that a change of it shows.

use outlast_check::state::{Checked, Fault};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Lists the public items, each with its kind and its path, in alphabetical order. Leaves out what the
/// documentation hides, and implementations of traits. `json` is what rustdoc says of the library.
fn list(json: &str) -> Checked<BTreeSet<String>> {
    let file: Value = serde_json::from_str(json).map_err(|e| Fault(format!("not JSON: {e}")))?;
    let index = file["index"].as_object().ok_or_else(|| Fault("no index of items".into()))?;
    let mut walk = Walk { index, found: BTreeSet::new() };
    let (kind, root) = walk.item(&file["root"])?;
    let name = text(root, "name")?;
    walk.add(kind, root, name)?;
    Ok(walk.found)
}

struct Walk<'j> {
    index: &'j Map<String, Value>,
    found: BTreeSet<String>,
}

fn text<'j>(value: &'j Value, name: &str) -> Checked<&'j str> {
    value[name].as_str().ok_or_else(|| Fault(format!("an item without {name}: {value}")))
}

impl<'j> Walk<'j> {
    /// Returns the kind of an item, and the item.
    fn item(&self, id: &Value) -> Checked<(&'j str, &'j Value)> {
        let item = self.index.get(&id.to_string());
        let item = item.ok_or_else(|| Fault(format!("no item {id}")))?;
        let kind = item["inner"].as_object().and_then(|inner| inner.keys().next());
        kind.map(|kind| (&**kind, item)).ok_or_else(|| Fault(format!("an item of no kind: {item}")))
    }

    /// Adds the items in a list that are public and not hidden.
    fn add_all(&mut self, ids: &'j Value, path: &str) -> Checked {
        for id in ids.as_array().into_iter().flatten() {
            let (kind, item) = self.item(id)?;
            let is_hidden = item["attrs"].to_string().contains("hidden");
            // Items of traits and variants have the visibility of what they belong to.
            let visibility = item["visibility"].as_str();
            if is_hidden || !matches!(visibility, Some("public" | "default")) {
                continue;
            }
            let inner = &item["inner"][kind];
            match kind {
                "use" if !inner["id"].is_null() && self.item(&inner["id"]).is_ok() => {
                    let (kind, item) = self.item(&inner["id"])?;
                    let path = format!("{path}::{}", text(inner, "name")?);
                    self.add(kind, item, &path)?;
                }
                "use" => drop(self.found.insert(format!("use {path}::{}", text(inner, "name")?))),
                _ => self.add(kind, item, &format!("{path}::{}", text(item, "name")?))?,
            }
        }
        Ok(())
    }

    fn add(&mut self, kind: &str, item: &'j Value, path: &str) -> Checked {
        self.found.insert(format!("{} {path}", kind.replace('_', " ")));
        let inner = &item["inner"][kind];
        for part in ["items", "variants"] {
            self.add_all(&inner[part], path)?;
        }
        self.add_all(&inner["kind"]["plain"]["fields"], path)?;
        for id in inner["impls"].as_array().into_iter().flatten() {
            let (kind, of) = self.item(id)?;
            if of["inner"][kind]["trait"].is_null() {
                self.add_all(&of["inner"][kind]["items"], path)?;
            }
        }
        Ok(())
    }
}

const JSON: &str = r#"{"root": 0, "index": {
    "0": {"name": "lib", "visibility": "public", "attrs": [], "inner": {"module": {"items": [1, 2, 3, 9]}}},
    "1": {"name": null, "visibility": "public", "attrs": [], "inner": {"use": {"name": "Pool", "id": 4}}},
    "2": {"name": "inner", "visibility": "public", "attrs": ["doc(hidden)"], "inner": {"module": {"items": [4]}}},
    "3": {"name": "secret", "visibility": "crate", "attrs": [], "inner": {"function": {}}},
    "4": {"name": "Pool", "visibility": "public", "attrs": [],
          "inner": {"struct": {"kind": {"plain": {"fields": [5]}}, "impls": [6, 7]}}},
    "5": {"name": "id", "visibility": "public", "attrs": [], "inner": {"struct_field": {}}},
    "6": {"name": null, "visibility": "default", "attrs": [], "inner": {"impl": {"trait": null, "items": [8]}}},
    "7": {"name": null, "visibility": "default", "attrs": [], "inner": {"impl": {"trait": {}, "items": [3]}}},
    "8": {"name": "close", "visibility": "public", "attrs": [], "inner": {"function": {}}},
    "9": {"name": null, "visibility": "public", "attrs": [], "inner": {"use": {"name": "Other", "id": null}}}
}}"#;

#[test]
fn what_is_public_and_shown_is_listed() {
    let found: Vec<_> = list(JSON).unwrap().into_iter().collect();
    let wanted = [
        "function lib::Pool::close",
        "module lib",
        "struct field lib::Pool::id",
        "struct lib::Pool",
        "use lib::Other",
    ];
    assert_eq!(found, wanted);
    assert!(list("{}").is_err());
}

/// Names every public item of the library as it is built with default features. A change of the interface
/// changes docs/api.txt, too; `UPDATE_API=1` makes this test write the file.
#[test]
fn the_public_interface_is_the_noted_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = root.join("target/api");
    let made = Command::new(env!("CARGO"))
        .args(["rustdoc", "--quiet", "--locked", "-p", "outlast", "--lib", "--target-dir"])
        .arg(&target)
        .args(["--", "-Z", "unstable-options", "--output-format", "json"])
        // The format of the JSON can change. This test reads few of its fields.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let json = std::fs::read_to_string(target.join("doc/outlast.json")).unwrap();
    let found: String = list(&json).unwrap().iter().map(|item| format!("{item}\n")).collect();
    let noted = root.join("docs/api.txt");
    if std::env::var_os("UPDATE_API").is_some() {
        std::fs::write(&noted, &found).unwrap();
    }
    let noted = std::fs::read_to_string(noted).unwrap();
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (found, noted) = (lines(&found), lines(&noted));
    let [new, gone] = [found.difference(&noted), noted.difference(&found)];
    let [new, gone] = [new.collect::<Vec<_>>(), gone.collect::<Vec<_>>()];
    assert!(new.is_empty() && gone.is_empty(), "new: {new:#?}, gone: {gone:#?}; see docs/api.txt");
    let counted =
        |item: &&String| !item.starts_with("variant") && !item.starts_with("struct field");
    // `Cache` with its options and statistics has 14 of them: it is a second kind of map.
    assert!(found.iter().filter(counted).count() <= 280, "a library of few doors");
}
