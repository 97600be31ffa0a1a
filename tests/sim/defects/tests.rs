//! Source texts and their entries.

use super::*;

const SOURCE: &str = "\
impl Lock {
    fn end(&mut self) {
        if self.is_held {
            self.release();
        }
    }

    fn drop(&mut self) {
        if self.is_held {
            self.release();
        }
        self.forget();
    }
}
";
const ENTRIES: &str = "\
@@ DropForgets in drop
-if self.is_held {
+if self.is_held && !mutant!(DropForgets) {
     self.release();
";

fn apply(source: &str, entries: &str) -> Result<String, String> {
    let file = Path::new("a.diff");
    apply_entries(file, source, &parse(file, entries)?)
}

#[test]
fn an_entry_changes_its_function_alone() {
    let text = apply(SOURCE, ENTRIES).unwrap();
    let (end, drop) = text.split_at(text.find("fn drop").unwrap());
    assert_eq!(end, SOURCE.split_at(SOURCE.find("fn drop").unwrap()).0);
    assert!(
        drop.contains("\n        if self.is_held && !mutant!(DropForgets) {\n            self.release();\n")
    );
}

#[test]
fn indentation_and_other_lines_do_not_matter() {
    let moved = format!("mod inner {{\n{}\n}}\n", SOURCE.replace('\n', "\n    "));
    assert!(apply(&moved, ENTRIES).unwrap().contains("\n            if self.is_held && !mutant!("));
}

#[test]
fn a_misfit_names_file_line_and_bug() {
    let misfit = |entries: &str| apply(SOURCE, entries).unwrap_err();
    let twice = "@@ A\n self.release();\n+mutant!(A);\n";
    assert_eq!(misfit(twice), "a.diff:1: A: the anchor is at 4 and at 10: self.release();\n");
    let never = "@@ A in end\n self.forget();\n+mutant!(A);\n";
    assert_eq!(misfit(never), "a.diff:1: A in end: the anchor is not there: self.forget();\n");
    let nowhere = "@@ A in leave\n self.forget();\n+mutant!(A);\n";
    assert_eq!(misfit(nowhere), "a.diff:1: A in leave: there is no such function\n");
    let unnamed = "@@ B in drop\n self.forget();\n+mutant!(A);\n";
    assert_eq!(misfit(unnamed), "a.diff:1: the header must be: @@ A in drop\n");
    let shared = format!("{ENTRIES}\n@@ A in drop\n     self.release();\n+mutant!(A);\n }}\n");
    assert_eq!(misfit(&shared), "a.diff:6: A in drop: shares lines with the entry at 1\n");
    assert_eq!(misfit("@@ A in drop\nif\n"), "a.diff:2: begins with none of @@, -, +, blank\n");
}

#[test]
fn a_difference_becomes_entries_and_back() {
    let copy = SOURCE
        .replace(
            "        self.forget();\n",
            "        if mutant!(A) {\n            return;\n        }\n        self.forget();\n",
        )
        .replacen("if self.is_held {", "if self.is_held || mutant!(B) {", 1)
        .replace("impl Lock {\n", "mod more;\n\nimpl Lock {\n");
    let entries = print(&derive_entries(Path::new("a"), SOURCE, &copy).unwrap());
    let wanted = "\
@@
+mod more;
+
 impl Lock {

@@ B in end
-if self.is_held {
+if self.is_held || mutant!(B) {

@@ A in drop
+if mutant!(A) {
+    return;
+}
 self.forget();
";
    assert_eq!(entries, wanted);
    assert_eq!(apply(SOURCE, &entries).unwrap(), copy);
}

#[test]
fn an_anchor_grows_until_it_is_unique() {
    let old = "fn f() {\n    go();\n    one();\n    go();\n    two();\n}\n";
    let new = old.replace("    go();\n    two();", "    if !mutant!(A) {\n        go();\n    }\n    two();");
    let entries = print(&derive_entries(Path::new("a"), old, &new).unwrap());
    assert_eq!(entries, "@@ A in f\n-go();\n+if !mutant!(A) {\n+    go();\n+}\n two();\n");
}

#[test]
fn a_function_ends_at_its_own_brace() {
    let text = "\
pub(crate) fn a<T>(x: T) -> T
where
    T: Copy,
{
    if y {
    }
}
trait B {
    fn b(&self);
    const fn c() -> u8 { 1 }
}
// fn d() {
";
    let lines: Vec<&str> = text.lines().collect();
    let wanted = [("a".to_owned(), 0..7), ("b".to_owned(), 8..9), ("c".to_owned(), 9..10)];
    assert_eq!(functions(&lines), wanted);
}

#[test]
fn copy_links_and_keeps_unchanged_files() {
    let root = std::env::temp_dir().join(format!("redlatch-defects-{}", std::process::id()));
    let (tree, copy) = (root.join("tree"), root.join("copy"));
    let texts = |text: &str| {
        Texts::from([("src/a.rs".into(), "a".to_owned()), ("tests/sim/b.rs".into(), text.to_owned())])
    };
    for file in ["src/a.rs", "src/old.rs", "tests/sim/b.rs", "tests/sim/c.rs", "docs/d.md", "target/e"] {
        write(&tree.join(file), "clean").unwrap();
    }
    mirror(&tree, &copy, Path::new(""), &texts("b")).unwrap();
    let written_at = |file: &str| fs::metadata(copy.join(file)).and_then(|it| it.modified()).unwrap();
    let before = (written_at("src/a.rs"), written_at("tests/sim/b.rs"));
    write(&copy.join("src/stray.rs"), "").unwrap();
    mirror(&tree, &copy, Path::new(""), &texts("changed")).unwrap();
    assert_eq!(written_at("src/a.rs"), before.0);
    assert_ne!(written_at("tests/sim/b.rs"), before.1);
    assert_eq!(fs::read_to_string(tree.join("tests/sim/b.rs")).unwrap(), "clean");
    let files = |folder: &str| names(&copy.join(folder)).unwrap().len();
    assert_eq!((files("src"), files("tests/sim"), files("")), (1, 2, 3));
    assert_eq!(fs::read_link(copy.join("docs")).unwrap(), tree.join("docs"));
    assert_eq!(fs::read_link(copy.join("tests/sim/c.rs")).unwrap(), tree.join("tests/sim/c.rs"));
    remove(&root).unwrap();
}
