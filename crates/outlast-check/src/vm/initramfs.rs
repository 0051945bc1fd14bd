//! The guest's initial file system: a cpio archive in the `newc` format of the kernel's
//! documentation.

use super::tools::{MODULES, Missing, Tools};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// The program that the kernel starts in the guest.
const INIT: &str = include_str!("init");
/// The busybox commands that the guest uses.
const COMMANDS: [&str; 8] =
    ["sh", "mount", "umount", "insmod", "mkdir", "poweroff", "stty", "echo"];

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;

/// Writes the archive with shell, tools, modules, and the programs under test, by name.
///
/// # Errors
/// If something that it needs is missing.
pub fn write(target: &Path, tools: &Tools, programs: &[(&str, &Path)]) -> Result<(), Missing> {
    let read = |path: &Path| {
        fs::read(path).map_err(|e| Missing(format!("{} cannot be read: {e}", path.display())))
    };
    let mut archive = Archive::default();
    for folder in ["dev", "proc", "sys", "mnt", "tmp", "etc"] {
        archive.folder(folder);
    }
    archive.add("init", PROGRAM, INIT.as_bytes());
    archive.add("bin/busybox", PROGRAM, &read(&tools.busybox())?);
    for command in COMMANDS {
        archive.add(&format!("bin/{command}"), LINK, b"busybox");
    }
    for (name, path) in tools.programs()? {
        archive.add(&name, PROGRAM, &read(&path)?);
    }
    for (name, path) in programs {
        archive.add(&format!("bin/{name}"), PROGRAM, &read(path)?);
    }
    let mut modules = Vec::new();
    for name in MODULES {
        if let Some(path) = tools.module(name) {
            modules.push((name, read(&path)?));
        }
    }
    let order = load_order(&modules);
    archive.add("modules/order", PROGRAM, (order.join("\n") + "\n").as_bytes());
    for (name, content) in &modules {
        archive.add(&format!("modules/{name}.ko"), PROGRAM, content);
    }
    let write = |bytes: Vec<u8>| -> io::Result<()> { fs::write(target, bytes) };
    write(archive.end())
        .map_err(|e| Missing(format!("{} cannot be written: {e}", target.display())))
}

/// Orders the modules, each after those on which it declares to depend.
fn load_order<'m>(modules: &[(&'m str, Vec<u8>)]) -> Vec<&'m str> {
    let mut order: Vec<&str> = Vec::new();
    // As many rounds as there are modules are enough. Modules in a dependency cycle come last.
    for last in (0..modules.len()).map(|round| round + 1 == modules.len()) {
        for (name, content) in
            modules.iter().filter(|(name, _)| !order.contains(name)).collect::<Vec<_>>()
        {
            let needed = depends(content);
            let ready = modules.iter().all(|(other, _)| {
                order.contains(other) || !needed.contains(&other.replace('-', "_"))
            });
            if ready || last {
                order.push(name);
            }
        }
    }
    order
}

/// Returns a module's dependencies, from its `.modinfo` section, with underscores in the names.
fn depends(module: &[u8]) -> Vec<String> {
    let field = b"\0depends=";
    let Some(start) = module.windows(field.len()).position(|window| window == field) else {
        return Vec::new();
    };
    let text = module[start + field.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).split(',').map(|name| name.replace('-', "_")).collect()
}

/// A `newc` archive.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<String>,
    entries: u32,
}

impl Archive {
    fn folder(&mut self, name: &str) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.folder(parent);
        }
        if self.folders.insert(name.into()) {
            self.entry(name, DIRECTORY, &[]);
        }
    }

    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            self.folder(parent);
        }
        self.entry(name, mode, content);
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let len = u32::try_from(content.len()).expect("a file of the guest is small");
        // inode, mode, user, group, links, time, size, device (2), special device (2), length of
        // the name with its zero, checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name.len() as u32 + 1, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_those_that_it_depends_on() {
        let module = |name, depends: &str| {
            (name, [b"\x7fELF\0license=GPL\0depends=", depends.as_bytes(), b"\0more"].concat())
        };
        let modules =
            [module("c-d", "a,b_x"), module("b-x", "a"), module("a", ""), module("e", "elsewhere")];
        assert_eq!(load_order(&modules), ["a", "e", "b-x", "c-d"]);
        let circle = [module("a", "b"), module("b", "a")];
        assert_eq!(load_order(&circle).len(), 2);
    }

    #[test]
    fn entries_are_aligned_and_folders_come_first() {
        let mut archive = Archive::default();
        archive.add("a/b/c", PROGRAM, b"12345");
        let bytes = archive.end();
        assert_eq!(bytes.len() % 4, 0);
        let mut names = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let field = |n: usize| {
                let text = std::str::from_utf8(&rest[6 + n * 8..14 + n * 8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            assert_eq!(&rest[..6], b"070701");
            let (size, name) = (field(6), field(11));
            names.push(String::from_utf8(rest[110..110 + name - 1].to_vec()).unwrap());
            let content = (110 + name).next_multiple_of(4);
            rest = &rest[(content + size).next_multiple_of(4)..];
        }
        assert_eq!(names, ["a", "a/b", "a/b/c", "TRAILER!!!"]);
    }
}
